// D = alpha * A * B + beta * C, bf16 to bf16: data-parallel{persistent=true,workgroups=132}
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto waves = (tiles_m*tiles_n + 131) / 132;  // tiles per workgroup

for (uint workgroup = 0; workgroup < 132; workgroup++)
{
    for (uint wave = 0; wave < (tiles_m*tiles_n - workgroup + 131) / 132; wave++)
    {
        acc = 0;
        for (uint k_tile = 0; k_tile < tiles_k; k_tile++)
        {
            uint tile_m = (132*wave + workgroup) / tiles_n;
            uint tile_n = (132*wave + workgroup) % tiles_n;
            uint tile_k = k_tile;
            // load A tile (tile_m, tile_k)
            // load B tile (tile_k, tile_n)
            acc += A tile * B tile;
        }
        uint tile_m = (132*wave + workgroup) / tiles_n;
        uint tile_n = (132*wave + workgroup) % tiles_n;
        // acc = acc * alpha;
        // if (read_c) acc = acc + C[m, n] * beta;
        // store acc into D tile (tile_m, tile_n)
    }
}
