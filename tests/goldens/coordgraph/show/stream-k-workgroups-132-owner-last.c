// D = alpha * A * B + beta * C, bf16 to bf16: stream-k{workgroups=132,owner=last}
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto share = (tiles_k*tiles_m*tiles_n + 131) / 132;  // streamed iterations per workgroup

for (uint workgroup = 0; workgroup < 132; workgroup++)
{
    if (share*workgroup < tiles_k*tiles_m*tiles_n)
    {
        uint iterations = min(share, tiles_k*tiles_m*tiles_n - share*workgroup);
        for (uint for_behind = 0; for_behind < iterations; for_behind += min((share*workgroup + max(0, iterations - for_behind - 1)) % tiles_k + 1, iterations - for_behind))
        {
            {
                uint for_tile = min(iterations - 1, iterations - for_behind - min((share*workgroup + max(0, iterations - for_behind - 1)) % tiles_k + 1, iterations - for_behind));
                uint k_first = (share*workgroup + for_tile) % tiles_k;
                uint k_count = min(iterations - for_tile, tiles_k - k_first);
                acc = 0;
                for (uint for_k = 0; for_k < k_count; for_k++)
                {
                    uint tile_m = (share*workgroup + for_tile) / (tiles_k*tiles_n);
                    uint tile_n = ((share*workgroup + for_tile) / tiles_k) % tiles_n;
                    uint tile_k = (share*workgroup + for_tile) % tiles_k + for_k;
                    // load A tile (tile_m, tile_k)
                    // load B tile (tile_k, tile_n)
                    acc += A tile * B tile;
                }
                // for_k = 0
                if (k_count + k_first < tiles_k)
                {
                    // store partial tile to workspace slot workgroup
                    flags[workgroup] = 1;
                }
                else
                {
                    if (k_first > 0)
                    {
                        for (uint partial_slot = tiles_k*((share*workgroup + for_tile) / tiles_k) / share; partial_slot < workgroup; partial_slot++)
                        {
                            while (flags[partial_slot] == 0);
                            // load partial tile from workspace slot partial_slot, add it to acc
                            flags[partial_slot] = 0;
                        }
                    }
                    uint tile_m = (share*workgroup + for_tile) / (tiles_k*tiles_n);
                    uint tile_n = ((share*workgroup + for_tile) / tiles_k) % tiles_n;
                    // acc = acc * alpha;
                    // if (read_c) acc = acc + C[m, n] * beta;
                    // store acc into D tile (tile_m, tile_n)
                }
            }
        }
    }
}
