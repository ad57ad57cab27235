# The objects of the kernels behind launch_gemm (launch.h): one for each tile format (packed.h) and template.
foreach(FORMAT Bf16 Bf16x2 Bf16x3 Q8_0 Q4_K Q6_K Mxfp4 Nvfp4 Fp8)
  quire_cuda_instance(stream_${FORMAT} stream)
endforeach()
# Tiles of many widths take long to compile: each kind is an object. The others are one together.
foreach(FORMAT Bf16 Mxfp4 Nvfp4 Fp8)
  quire_cuda_instance(tile_${FORMAT} tile)
  quire_cuda_instance(tile_${FORMAT}_k_slices tile_k_slices)
  quire_cuda_instance(tile_${FORMAT}_mma tile_mma)
endforeach()
foreach(FORMAT Bf16x2 Bf16x3 Q8_0 Q4_K Q6_K)
  quire_cuda_instance(tile_${FORMAT} tile tile_k_slices tile_mma)
endforeach()
