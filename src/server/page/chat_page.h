// The page at "/": a chat in a browser over this server's own API. One document with everything in it, put together
// of page.html and the parts that it names.
#pragma once

#include "server/protocol/http.h"

namespace quire::server {

// Whether a request is a browser's that opens a page: it names HTML among what it takes.
bool wants_page(const HttpRequest& request);

// The page, with headers that let it run its own script, ask its own server, and do nothing else.
HttpResponse chat_page();

}  // namespace quire::server
