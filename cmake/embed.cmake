# Makes a C++ source of a text file: cmake -DTEXT=page.html -DNAME=kChatPage -DSOURCE=page.cpp -P embed.cmake
# It defines `extern const std::string_view NAME` of namespace quire::server.
file(READ ${TEXT} text)
if(text MATCHES "[)]embedded\"")
  message(FATAL_ERROR "${TEXT} has what ends the literal that it would be embedded in: )embedded\"")
endif()
get_filename_component(file ${TEXT} NAME)
file(WRITE ${SOURCE} "// Made of ${file} by cmake/embed.cmake.
#include <string_view>

namespace quire::server {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"embedded(${text})embedded\";
}  // namespace quire::server
")
