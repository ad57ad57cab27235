# CUDA sources of a few lines that instantiate templates, each for an object of its own: they compile side by side, and
# ccache has those that did not change. They are written into the build folder, out of a template beside the kernels
# (*.cu.in) for each kind and a list of what there is (instances.cmake). They include by names relative to src/.

# For lists: adds the object `name`, made of the templates (ARGN) beside the list, where @FORMAT@ and so on stand for
# the list's variables of that name.
macro(quire_cuda_instance name)
  string(TOLOWER ${name} instance_name)
  set(instance_text "")
  foreach(instance_template ${ARGN})
    set(instance_template ${CMAKE_CURRENT_LIST_DIR}/${instance_template}.cu.in)
    file(READ ${instance_template} instance_part)
    string(CONFIGURE "${instance_part}" instance_part @ONLY)
    string(APPEND instance_text "${instance_part}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${instance_template})
  endforeach()
  file(RELATIVE_PATH instance_folder ${CMAKE_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR})
  set(instance_source ${CMAKE_BINARY_DIR}/instances/${instance_folder}/${instance_name}.cu)
  file(CONFIGURE OUTPUT ${instance_source} CONTENT "${instance_text}" @ONLY)
  list(APPEND instance_sources ${instance_source})
endmacro()

# Appends to `files` (a list's name) the sources that the lists of a layer ask for.
function(quire_cuda_instances layer files)
  set(instance_sources "")
  file(GLOB_RECURSE lists CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${layer}/instances.cmake)
  foreach(list IN LISTS lists)
    include(${list})
  endforeach()
  set(${files} ${${files}} ${instance_sources} PARENT_SCOPE)
endfunction()
