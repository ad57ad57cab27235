# Files are compiled several to a translation unit, a batch: what takes a compiler's time is the headers that they share,
# and a batch reads those once. It includes its files by their names relative to src/, tests/ or third_party/, so that
# ccache finds what another preset or another checkout compiled.
# Compiled alone are files of an instruction set; none.cpp, so that a build with CUDA has the same batches; and those of
# layers that say ALONE and of a few test programs, where files give their private constants the same names.
# A file must also compile by itself: it includes what it uses, and -DQUIRE_BATCH=0 builds so.
set(QUIRE_BATCH 8 CACHE STRING "How many files of a folder are compiled as one; 0: each by itself")

# Replaces `files` (a list's name, absolute paths) by what is to be compiled: files, and batches written into the build
# folder. Groups follow the folders: a new file changes what is in the batches of its own folder alone.
function(quire_batch files name base size)
  if(QUIRE_BATCH LESS 2)
    return()
  endif()
  if(size GREATER QUIRE_BATCH)
    set(size ${QUIRE_BATCH})
  endif()
  list(SORT ${files})
  set(result "")
  set(batch "")
  set(count 0)
  set(number 0)
  set(folder "")
  foreach(file IN LISTS ${files} ITEMS "")
    get_filename_component(here "${file}" DIRECTORY)
    if(batch AND (count EQUAL size OR NOT here STREQUAL folder))
      set(source ${CMAKE_BINARY_DIR}/batches/${name}_${number}.cpp)
      file(CONFIGURE OUTPUT ${source} CONTENT "${batch}" @ONLY)
      list(APPEND result ${source})
      math(EXPR number "${number} + 1")
      set(batch "")
      set(count 0)
    endif()
    set(folder "${here}")
    if(file MATCHES "_(avx2|avxvnni|avx512|amx|dotprod|i8mm)\\.cpp$|/(main|cpu_check|none)\\.cpp$")
      list(APPEND result ${file})
    elseif(file)
      file(RELATIVE_PATH path ${base} ${file})
      string(APPEND batch "#include \"${path}\"\n")
      math(EXPR count "${count} + 1")
    endif()
  endforeach()
  set(${files} ${result} PARENT_SCOPE)
endfunction()
