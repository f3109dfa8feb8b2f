// D = alpha * A * B + beta * C, bf16 to bf16: heterogeneous-tiles{workgroups=132,small_n=32}
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto full_waves = tiles_m*tiles_n / 132;  // macro tiles per workgroup
auto rest_tiles = tiles_m*tiles_n - 132*full_waves;  // macro tiles of the ragged wave
auto small_waves = (8*rest_tiles + 131) / 132;  // small tiles per workgroup
auto small_tiles_m = (m + 63) / 64;  // small tiles in m
auto small_tiles_n = (n + 31) / 32;  // small tiles in n

for (uint workgroup = 0; workgroup < 132; workgroup++)
{
    // selector = 0
    // full waves
    for (uint full_wave = 0; full_wave < full_waves; full_wave++)
    {
        acc = 0;
        for (uint k_tile = 0; k_tile < tiles_k; k_tile++)
        {
            uint tile_m = (132*full_wave + workgroup) / tiles_n;
            uint tile_n = (132*full_wave + workgroup) % tiles_n;
            uint tile_k = k_tile;
            // load A tile (tile_m, tile_k)
            // load B tile (tile_k, tile_n)
            acc += A tile * B tile;
        }
        uint tile_m = (132*full_wave + workgroup) / tiles_n;
        uint tile_n = (132*full_wave + workgroup) % tiles_n;
        // acc = acc * alpha;
        // if (read_c) acc = acc + C[m, n] * beta;
        // store acc into D tile (tile_m, tile_n)
    }
    // selector = 1
    // rest
    for (uint small_wave = 0; small_wave < (8*rest_tiles - workgroup + 131) / 132; small_wave++)
    {
        small = 0;
        for (uint k_tile = 0; k_tile < tiles_k; k_tile++)
        {
            uint tile_m = 2*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) / tiles_n) + (small_wave + workgroup / 4) % 2;
            uint tile_n = 4*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) % tiles_n) + workgroup % 4;
            uint tile_k = k_tile;
            // padding unless 2*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) / tiles_n) + (small_wave + workgroup / 4) % 2 < small_tiles_m
            // padding unless 4*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) % tiles_n) + workgroup % 4 < small_tiles_n
            // load A tile (tile_m, tile_k)
            // load B tile (tile_k, tile_n)
            small += A tile * B tile;
        }
        uint tile_m = 2*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) / tiles_n) + (small_wave + workgroup / 4) % 2;
        uint tile_n = 4*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) % tiles_n) + workgroup % 4;
        // padding unless 4*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) % tiles_n) + workgroup % 4 < small_tiles_n
        // padding unless 2*(((small_wave + workgroup / 4) / 2 + 132*full_waves + 16*small_wave) / tiles_n) + (small_wave + workgroup / 4) % 2 < small_tiles_m
        // small = small * alpha;
        // if (read_c) small = small + C[m, n] * beta;
        // store small into D tile (tile_m, tile_n)
    }
}
