# The libraries that decode pictures, as a list IMAGE_LIBRARIES. With QUIRE_STATIC these are archives, because the
# suffixes that find_library tries were set before.
find_path(PNG_INCLUDE_DIR png.h REQUIRED)
find_path(JPEG_INCLUDE_DIR jpeglib.h REQUIRED)
find_path(WEBP_INCLUDE_DIR webp/decode.h REQUIRED)
find_path(GIF_INCLUDE_DIR gif_lib.h REQUIRED)
set(IMAGE_LIBRARIES "")
foreach(library png16 jpeg webp gif z)  # libpng needs zlib
  find_library(IMAGE_${library} ${library} REQUIRED)
  list(APPEND IMAGE_LIBRARIES ${IMAGE_${library}})
endforeach()
