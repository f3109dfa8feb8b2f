// D = alpha * A * B + beta * C, bf16 to bf16: two-tile-stream-k{first=dp}
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto dp_waves = tiles_m*tiles_n % workgroups == 0 ? tiles_m*tiles_n / workgroups : max(0, tiles_m*tiles_n / workgroups - 1);  // data-parallel tiles per workgroup
auto sk_tiles = tiles_m*tiles_n - dp_waves*workgroups;  // output tiles that are streamed
auto share = max((sk_tiles*tiles_k + workgroups - 1) / workgroups, 1);  // streamed iterations per workgroup

for (uint workgroup = 0; workgroup < workgroups; workgroup++)
{
    // selector = 0
    // data-parallel
    for (uint dp_wave = 0; dp_wave < dp_waves; dp_wave++)
    {
        acc = 0;
        for (uint for_k = 0; for_k < tiles_k; for_k++)
        {
            uint tile_m = (dp_wave*workgroups + workgroup) / tiles_n;
            uint tile_n = (dp_wave*workgroups + workgroup) % tiles_n;
            uint tile_k = for_k;
            // load A tile (tile_m, tile_k)
            // load B tile (tile_k, tile_n)
            acc += A tile * B tile;
        }
        // for_k = 0
        uint tile_m = (dp_wave*workgroups + workgroup) / tiles_n;
        uint tile_n = (dp_wave*workgroups + workgroup) % tiles_n;
        // acc = acc * alpha;
        // if (read_c) acc = acc + C[m, n] * beta;
        // store acc into D tile (tile_m, tile_n)
    }
    // selector = 1
    // stream-k
    if (share*workgroup < sk_tiles*tiles_k)
    {
        uint iterations = min(share, sk_tiles*tiles_k - share*workgroup);
        for (uint for_tile = 0; for_tile < iterations; for_tile += min(iterations - for_tile, tiles_k - (share*workgroup + for_tile) % tiles_k))
        {
            uint k_first = (share*workgroup + for_tile) % tiles_k;
            uint k_count = min(iterations - for_tile, tiles_k - k_first);
            acc = 0;
            for (uint for_k = 0; for_k < k_count; for_k++)
            {
                uint tile_m = (dp_waves*workgroups + (share*workgroup + for_tile) / tiles_k) / tiles_n;
                uint tile_n = (dp_waves*workgroups + (share*workgroup + for_tile) / tiles_k) % tiles_n;
                uint tile_k = (share*workgroup + for_tile) % tiles_k + for_k;
                // load A tile (tile_m, tile_k)
                // load B tile (tile_k, tile_n)
                acc += A tile * B tile;
            }
            // for_k = 0
            if (k_first > 0)
            {
                // store partial tile to workspace slot workgroup
                flags[workgroup] = 1;
            }
            else
            {
                if (k_count + k_first < tiles_k)
                {
                    for (uint partial_slot = workgroup + 1; partial_slot < (tiles_k*(dp_waves*workgroups + (share*workgroup + for_tile) / tiles_k) - dp_waves*tiles_k*workgroups + tiles_k - 1) / share + 1; partial_slot++)
                    {
                        while (flags[partial_slot] == 0);
                        // load partial tile from workspace slot partial_slot, add it to acc
                        flags[partial_slot] = 0;
                    }
                }
                uint tile_m = (dp_waves*workgroups + (share*workgroup + for_tile) / tiles_k) / tiles_n;
                uint tile_n = (dp_waves*workgroups + (share*workgroup + for_tile) / tiles_k) % tiles_n;
                // acc = acc * alpha;
                // if (read_c) acc = acc + C[m, n] * beta;
                // store acc into D tile (tile_m, tile_n)
            }
        }
    }
}
