// D = alpha * A * B + beta * C, bf16 to bf16: reorder{swap=true,group=3}, stream-k
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto share = (3*tiles_k*((tiles_m*tiles_n + 2) / 3) - 1) / workgroups + 1;  // streamed iterations per workgroup

for (uint workgroup = 0; workgroup < workgroups; workgroup++)
{
    if (share*workgroup < 3*tiles_k*((tiles_m*tiles_n + 2) / 3))
    {
        uint iterations = min(3*tiles_k*((tiles_m*tiles_n + 2) / 3) - share*workgroup, share);
        for (uint for_tile = 0; for_tile < iterations; for_tile += min(iterations - for_tile, tiles_k - (share*workgroup + for_tile) % tiles_k))
        {
            uint k_first = (share*workgroup + for_tile) % tiles_k;
            uint k_count = min(iterations - for_tile, tiles_k - k_first);
            acc = 0;
            for (uint for_k = 0; for_k < k_count; for_k++)
            {
                uint tile_m = (3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3))) % tiles_m;
                uint tile_n = (3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3))) / tiles_m;
                uint tile_k = (share*workgroup + for_tile) % tiles_k + for_k;
                // padding unless 3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3)) < tiles_m*tiles_n
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
                uint tile_m = (3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3))) % tiles_m;
                uint tile_n = (3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3))) / tiles_m;
                // padding unless 3*(((share*workgroup + for_tile) / tiles_k) % ((tiles_m*tiles_n + 2) / 3)) + (share*workgroup + for_tile) / (tiles_k*((tiles_m*tiles_n + 2) / 3)) < tiles_m*tiles_n
                // acc = acc * alpha;
                // if (read_c) acc = acc + C[m, n] * beta;
                // store acc into D tile (tile_m, tile_n)
            }
        }
    }
}
