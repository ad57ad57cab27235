# The objects of launch_few (few.h): one for each pair of tile formats, of gate and up and of down, that few.cu has.
foreach(pair Bf16/Bf16 Q8_0/Q8_0 Q4_K/Q4_K Q4_K/Q6_K Q6_K/Q6_K Mxfp4/Mxfp4 Nvfp4/Nvfp4 Fp8/Fp8)
  string(REGEX MATCH "(.+)/(.+)" whole ${pair})
  set(UP ${CMAKE_MATCH_1})
  set(DOWN ${CMAKE_MATCH_2})
  quire_cuda_instance(few_${UP}_${DOWN} few)
endforeach()
