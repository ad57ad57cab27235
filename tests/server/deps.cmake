target_link_libraries(test_server PRIVATE quire_server)
add_dependencies(test_server quire)
# What many clients are told is compared with what each is told alone: half a minute for each model.
set(shards exactness=*Exactness*)
