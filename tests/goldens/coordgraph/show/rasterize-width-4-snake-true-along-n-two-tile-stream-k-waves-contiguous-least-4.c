// D = alpha * A * B + beta * C, bf16 to bf16: rasterize{width=4,snake=true,along=n}, two-tile-stream-k{waves=contiguous,least=4}
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto dp_waves = tiles_m*tiles_n % workgroups == 0 ? tiles_m*tiles_n / workgroups : max(0, tiles_m*tiles_n / workgroups - 1);  // data-parallel tiles per workgroup
auto sk_tiles = tiles_m*tiles_n - dp_waves*workgroups;  // output tiles that are streamed
auto share = max((sk_tiles*tiles_k + workgroups - 1) / workgroups, 4);  // streamed iterations per workgroup

for (uint workgroup = 0; workgroup < workgroups; workgroup++)
{
    // selector = 0
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
                uint tile_m = ((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) % 2 == 1 ? tiles_m - (4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / (4*tiles_k)) % tiles_m : min((((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1)) - 1 : (4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / (4*tiles_k)) % tiles_m : min((((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1));
                uint tile_n = 4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / tiles_k) % 4 + 4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) : (((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) % ((tiles_n - 1) % 4 + 1) - (tiles_n - 1) % 4 + tiles_n - 1;
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
                    for (uint partial_slot = workgroup + 1; partial_slot < (tiles_k*((share*workgroup + for_tile) / tiles_k) + tiles_k - 1) / share + 1; partial_slot++)
                    {
                        while (flags[partial_slot] == 0);
                        // load partial tile from workspace slot partial_slot, add it to acc
                        flags[partial_slot] = 0;
                    }
                }
                uint tile_m = ((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) % 2 == 1 ? tiles_m - (4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / (4*tiles_k)) % tiles_m : min((((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1)) - 1 : (4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / (4*tiles_k)) % tiles_m : min((((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1));
                uint tile_n = 4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) + 4 < tiles_n ? ((share*workgroup + for_tile) / tiles_k) % 4 + 4*((share*workgroup + for_tile) / (4*tiles_k*tiles_m)) : (((share*workgroup + for_tile) / tiles_k) % (4*tiles_m)) % ((tiles_n - 1) % 4 + 1) - (tiles_n - 1) % 4 + tiles_n - 1;
                // acc = acc * alpha;
                // if (read_c) acc = acc + C[m, n] * beta;
                // store acc into D tile (tile_m, tile_n)
            }
        }
    }
    // selector = 1
    // data-parallel
    for (uint for_tile_ordinal = 0; for_tile_ordinal < dp_waves; for_tile_ordinal++)
    {
        uint for_tile = for_tile_ordinal*tiles_k;
        acc = 0;
        for (uint for_k = 0; for_k < tiles_k; for_k++)
        {
            uint tile_m = ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) % 2 == 1 ? tiles_m - (4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / 4) % tiles_m : min(((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1)) - 1 : (4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / 4) % tiles_m : min(((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1));
            uint tile_n = 4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? (dp_waves*workgroup + for_tile_ordinal + sk_tiles) % 4 + 4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) : ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) % ((tiles_n - 1) % 4 + 1) - (tiles_n - 1) % 4 + tiles_n - 1;
            uint tile_k = for_k;
            // load A tile (tile_m, tile_k)
            // load B tile (tile_k, tile_n)
            acc += A tile * B tile;
        }
        // for_k = 0
        uint tile_m = ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) % 2 == 1 ? tiles_m - (4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / 4) % tiles_m : min(((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1)) - 1 : (4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / 4) % tiles_m : min(((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) / ((tiles_n - 1) % 4 + 1), tiles_m - 1));
        uint tile_n = 4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) + 4 < tiles_n ? (dp_waves*workgroup + for_tile_ordinal + sk_tiles) % 4 + 4*((dp_waves*workgroup + for_tile_ordinal + sk_tiles) / (4*tiles_m)) : ((dp_waves*workgroup + for_tile_ordinal + sk_tiles) % (4*tiles_m)) % ((tiles_n - 1) % 4 + 1) - (tiles_n - 1) % 4 + tiles_n - 1;
        // acc = acc * alpha;
        // if (read_c) acc = acc + C[m, n] * beta;
        // store acc into D tile (tile_m, tile_n)
    }
}
