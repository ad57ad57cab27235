# What builds with sanitizers have of these tests, unless QUIRE_SANITIZE_ALL is on: connections, requests from bytes to
# tokens and their ends, what threads share, what is kept for later, what is read of strangers' bodies. The others say of
# memory and threads nothing that these do not, and the server's tests take longer to compile than all others together.
set(sanitized
    access
    admission
    anthropic
    content_part
    device_loss
    embedding
    engine_group
    http
    malformed
    ollama
    protocol
    request_pool
    response_store
    responses
    server
    step_trace
    tls)
