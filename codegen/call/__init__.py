"""From arrays to a launch: `matmul`, `grouped_matmul`, and `explain`.

One product, a batch and groups take the same steps, one file for each step:

1. `matmul.py` looks the call up by its cache key: shapes, strides, types, device and alignment.
   A call with the key of an earlier call launches at once and skips the other steps.
2. `describe.py` makes a `Call`: the problem as a `Gemm` on a device (`request.py`), views of the
   operands by name, and an `Arrangement` (`arrangement.py`): which arrays the kernel takes
   transposed, expanded or joined.
3. `choose.py` yields plans to try: the caller's, or else the fastest measured one (`measured.py`;
   `tuning.py` measures) and those of the cost model.
4. `build.py` compiles the kernel of a plan, once in a process. If a kernel cannot be built, or the
   device refuses it, `try_plans` of that file tries the next plan.
   With the option `background`, a call whose plan has no built kernel uses the best plan that has
   one (`stand_ins.py`), while another process compiles the kernel (`background_compiler.py`).
5. `launch.py` launches the kernel with the arranged arrays, and stores the launch function under
    the cache key.

`explain.py` describes a problem by its sizes and takes step 3 alone. Kernels of every target share
`arrays.py` (array libraries), `checks.py` (arguments) and `zero_extents.py` (extents of 0).
"""
