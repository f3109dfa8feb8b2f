// D = alpha * A * B + beta * C, bf16 to bf16
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k

// for one tile: A_tile_0, B_tile_1 are not scheduled yet
acc = 0;
for (uint k_tile = 0; k_tile < tiles_k; k_tile++)
{
    uint tile_m = A_tile_0;
    uint tile_n = B_tile_1;
    uint tile_k = k_tile;
    // load A tile (tile_m, tile_k)
    // load B tile (tile_k, tile_n)
    acc += A tile * B tile;
}
uint tile_m = A_tile_0;
uint tile_n = B_tile_1;
// acc = acc * alpha;
// if (read_c) acc = acc + C[m, n] * beta;
// store acc into D tile (tile_m, tile_n)
