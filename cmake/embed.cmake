# Makes a C++ source of a text file: cmake -DTEXT=page.html -DNAME=kChatPage -DNAMESPACE=quire::server -DSOURCE=page.cpp
# -P embed.cmake. It defines `extern const std::string_view NAME` of the namespace. @file@ stands for what a file beside
# it holds.
file(READ ${TEXT} text)
get_filename_component(file ${TEXT} NAME)
get_filename_component(folder ${TEXT} DIRECTORY)
string(REGEX MATCHALL "@[a-z]+[.][a-z]+@" parts "${text}")
foreach(part ${parts})
  string(REPLACE "@" "" name ${part})
  file(READ ${folder}/${name} content)
  string(REPLACE "${part}" "${content}" text "${text}")
endforeach()
if(text MATCHES "[)]embedded\"")
  message(FATAL_ERROR "${TEXT} has what ends the literal that it would be embedded in: )embedded\"")
endif()
file(WRITE ${SOURCE} "// Made of ${file} by cmake/embed.cmake.
#include <string_view>

namespace ${NAMESPACE} {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"embedded(${text})embedded\";
}  // namespace ${NAMESPACE}
")
