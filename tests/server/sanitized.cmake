# What builds with sanitizers have of these tests, unless QUIRE_SANITIZE_ALL is on, because the server's tests take longer
# to compile than all others together. TSan: what threads share. ASan also: connections, requests from bytes to tokens
# and their ends, what is kept for later, what is read of strangers' bodies. The others say of memory and threads
# nothing that these do not.
set(sanitized
    access
    admission
    device_loss
    engine_group
    media
    media_fetcher
    media_waits
    pictures
    request_pool
    response_store
    server
    step_trace)
if(NOT QUIRE_SANITIZE MATCHES "thread")
  list(APPEND sanitized
      anthropic
      content_part
      embedding
      http
      malformed
      media_policy
      ollama
      protocol
      responses
      tls)
endif()
