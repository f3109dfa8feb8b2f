// D = alpha * A * B + beta * C, bf16 to bf16: stream-k{workgroups=132,owner=last}, lower-to-tensor-cores
auto tiles_m = (m + 127) / 128;  // macro tiles in m
auto tiles_n = (n + 127) / 128;  // macro tiles in n
auto tiles_k = (k + 31) / 32;  // macro tiles in k
auto share = (tiles_k*tiles_m*tiles_n + 131) / 132;  // streamed iterations per workgroup

for (uint workgroup = 0; workgroup < 132; workgroup++)
{
    uint iterations = min(share, tiles_k*tiles_m*tiles_n - share*workgroup);
    uint tiles_end = (share*workgroup + iterations + tiles_k - 1) / tiles_k;
    for (uint visit = 0; visit < tiles_end - share*workgroup / tiles_k; visit++)
    {
        {
            uint for_tile = max(share*workgroup, tiles_k*(tiles_end - visit - 1)) - share*workgroup;
            uint k_first = (share*workgroup + for_tile) % tiles_k;
            uint k_count = min(iterations - for_tile, tiles_k - k_first);
            #pragma unroll
            for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
            {
                #pragma unroll
                for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                {
                    #pragma unroll
                    for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                    {
                        #pragma unroll
                        for (uint acc_half = 0; acc_half < 2; acc_half++)
                        {
                            // acc.pair = 0
                            ZeroFragment (fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; width 2);
                        }
                    }
                }
            }
            Prefetch (name fill)
            {
                #pragma unroll
                for (uint pipeline_fill = 0; pipeline_fill < 3; pipeline_fill++)
                {
                    if (pipeline_fill < k_count)
                    {
                        // for_k = pipeline_fill
                        #pragma unroll
                        for (uint A_copy_pass = 0; A_copy_pass < 2; A_copy_pass++)
                        {
                            // A.copy.element = 0
                            CopyElements A[k*(128*((share*workgroup + for_tile) / (tiles_k*tiles_n)) + 64*A_copy_pass + workitem / 4) + 32*((share*workgroup + for_tile) % tiles_k) + 32*pipeline_fill + 8*(workitem % 4)] -> A.shared[8*((workitem / 8) % 4 ^ workitem % 4) + 2048*A_copy_pass + 4096*pipeline_fill + 32*(workitem / 4)] (width 8; asynchronous true);
                        }
                        #pragma unroll
                        for (uint B_copy_pass = 0; B_copy_pass < 2; B_copy_pass++)
                        {
                            // B.copy.element = 0
                            CopyElements B[n*(32*((share*workgroup + for_tile) % tiles_k) + 16*B_copy_pass + 32*pipeline_fill + workitem / 16) + 128*(((share*workgroup + for_tile) / tiles_k) % tiles_n) + 8*(workitem % 16)] -> B.shared[8*((workitem / 16) % 8 ^ workitem % 16) + 2048*B_copy_pass + 4096*pipeline_fill + 128*(workitem / 16)] (width 8; asynchronous true);
                        }
                    }
                    CommitCopies;
                }
            }
            for (uint for_k = 0; for_k < k_count; for_k++)
            {
                WaitCopies (pending 2);
                Barrier;
                uint ahead = for_k + 3;
                if (ahead < k_count)
                {
                    // for_k = ahead
                    #pragma unroll
                    for (uint A_copy_pass = 0; A_copy_pass < 2; A_copy_pass++)
                    {
                        // A.copy.element = 0
                        CopyElements A[k*(128*((share*workgroup + for_tile) / (tiles_k*tiles_n)) + 64*A_copy_pass + workitem / 4) + 32*((share*workgroup + for_tile) % tiles_k) + 32*ahead + 8*(workitem % 4)] -> A.shared[8*((workitem / 8) % 4 ^ workitem % 4) + 2048*A_copy_pass + 4096*(ahead % 4) + 32*(workitem / 4)] (width 8; asynchronous true);
                    }
                    #pragma unroll
                    for (uint B_copy_pass = 0; B_copy_pass < 2; B_copy_pass++)
                    {
                        // B.copy.element = 0
                        CopyElements B[n*(32*((share*workgroup + for_tile) % tiles_k) + 16*B_copy_pass + 32*ahead + workitem / 16) + 128*(((share*workgroup + for_tile) / tiles_k) % tiles_n) + 8*(workitem % 16)] -> B.shared[8*((workitem / 16) % 8 ^ workitem % 16) + 2048*B_copy_pass + 4096*(ahead % 4) + 128*(workitem / 16)] (width 8; asynchronous true);
                    }
                }
                CommitCopies;
                #pragma unroll
                for (uint fragment_k = 0; fragment_k < 2; fragment_k++)
                {
                    #pragma unroll
                    for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                    {
                        // A.load.element = 0
                        LoadFragment (source A.shared[8*((workitem / 16) % 2 + 2*fragment_k ^ (workitem / 2) % 4) + 256*((workitem / 8) % 2) + 4096*(for_k % 4) + 512*fragment_m + 32*(workitem % 8) + 1024*(workitem / 64)]; fragment A; registers fragment.m; width 1; form ldmatrix.x4);
                    }
                    #pragma unroll
                    for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                    {
                        // B.load.element = 0
                        LoadFragment (source B.shared[8*((workitem / 16) % 2 + 8*((workitem / 32) % 2) + 2*fragment_n ^ workitem % 8) + 1024*((workitem / 8) % 2) + 4096*(for_k % 4) + 2048*fragment_k + 128*(workitem % 8)]; fragment B; registers fragment.n; width 1; form ldmatrix.x4.trans);
                    }
                    #pragma unroll
                    for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                    {
                        #pragma unroll
                        for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                        {
                            #pragma unroll
                            for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                            {
                                MultiplyFragments (a A; b B; accumulator acc; a_registers fragment.m; b_registers fragment.n, acc.eighth; registers fragment.m, fragment.n, acc.eighth; instruction mma.m16n8k16.bf16);
                            }
                        }
                    }
                }
            }
            WaitCopies (pending 0);
            Barrier;
            // for_k = 0
            if (k_count + k_first < tiles_k)
            {
                #pragma unroll
                for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                {
                    #pragma unroll
                    for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                    {
                        #pragma unroll
                        for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                        {
                            #pragma unroll
                            for (uint acc_half = 0; acc_half < 2; acc_half++)
                            {
                                // acc.pair = 0
                                StoreFragment (destination partials[64*((workitem / 32) % 2) + 128*((workitem / 4) % 8) + 8*acc_eighth + 1024*acc_half + 2048*fragment_m + 16*fragment_n + 16384*workgroup + 2*(workitem % 4) + 4096*(workitem / 64)]; fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; width 2);
                            }
                        }
                    }
                }
                Barrier;
                if (workitem == 0)
                {
                    SignalFlag (flag flags[workgroup]);
                }
            }
            else
            {
                if (k_first > 0)
                {
                    for (uint partial_slot = tiles_k*((share*workgroup + for_tile) / tiles_k) / share; partial_slot < workgroup; partial_slot++)
                    {
                        if (workitem == 0)
                        {
                            WaitFlag (flag flags[partial_slot]);
                        }
                        Barrier;
                        #pragma unroll
                        for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                        {
                            #pragma unroll
                            for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                            {
                                #pragma unroll
                                for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                                {
                                    #pragma unroll
                                    for (uint acc_half = 0; acc_half < 2; acc_half++)
                                    {
                                        // acc.pair = 0
                                        AccumulateFragment (source partials[64*((workitem / 32) % 2) + 128*((workitem / 4) % 8) + 8*acc_eighth + 1024*acc_half + 2048*fragment_m + 16*fragment_n + 16384*partial_slot + 2*(workitem % 4) + 4096*(workitem / 64)]; fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; width 2);
                                    }
                                }
                            }
                        }
                        Barrier;
                        if (workitem == 0)
                        {
                            ClearFlag (flag flags[partial_slot]);
                        }
                    }
                }
                #pragma unroll
                for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                {
                    #pragma unroll
                    for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                    {
                        #pragma unroll
                        for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                        {
                            #pragma unroll
                            for (uint acc_half = 0; acc_half < 2; acc_half++)
                            {
                                // acc.pair = 0
                                ScaleFragment (fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; scale alpha; width 2);
                            }
                        }
                    }
                }
                if (read_c == 1)
                {
                    #pragma unroll
                    for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                    {
                        #pragma unroll
                        for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                        {
                            #pragma unroll
                            for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                            {
                                #pragma unroll
                                for (uint acc_half = 0; acc_half < 2; acc_half++)
                                {
                                    // acc.pair = 0
                                    AccumulateFragment (source C[n*(128*((share*workgroup + for_tile) / (tiles_k*tiles_n)) + (workitem / 4) % 8 + 8*acc_half + 16*fragment_m + 32*(workitem / 64)) + 128*(((share*workgroup + for_tile) / tiles_k) % tiles_n) + 64*((workitem / 32) % 2) + 8*acc_eighth + 16*fragment_n + 2*(workitem % 4)]; fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; width 2; scale beta);
                                }
                            }
                        }
                    }
                }
                #pragma unroll
                for (uint fragment_m = 0; fragment_m < 2; fragment_m++)
                {
                    #pragma unroll
                    for (uint fragment_n = 0; fragment_n < 4; fragment_n++)
                    {
                        #pragma unroll
                        for (uint acc_eighth = 0; acc_eighth < 2; acc_eighth++)
                        {
                            #pragma unroll
                            for (uint acc_half = 0; acc_half < 2; acc_half++)
                            {
                                // acc.pair = 0
                                StoreFragment (destination D[n*(128*((share*workgroup + for_tile) / (tiles_k*tiles_n)) + (workitem / 4) % 8 + 8*acc_half + 16*fragment_m + 32*(workitem / 64)) + 128*(((share*workgroup + for_tile) / tiles_k) % tiles_n) + 64*((workitem / 32) % 2) + 8*acc_eighth + 16*fragment_n + 2*(workitem % 4)]; fragment acc; registers fragment.m, fragment.n, acc.eighth, acc.half; width 2);
                            }
                        }
                    }
                }
            }
        }
    }
}
