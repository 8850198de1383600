// Documents that other code writes and the server shows: texts under a path, or under a name that no request can ask for.
//
// The publisher writes new texts from any thread. Threads that answer requests copy the latest text, so no request waits
// for the decoding thread or for Python. `asked_ms` says whether anybody looks.
#pragma once

#include <cstdint>
#include <string>

namespace edgekv_documents {

// replaces a document
void publish(const std::string & path, const std::string & type, const std::string & text);

// withdraws all documents, and forgets when they were requested
void withdraw();

// milliseconds since the document was last requested; -1: never, or there is no such document
int64_t asked_ms(const std::string & path);

// Sets the function that brings the documents up to date. The decoding thread calls it between two batches. idle: nothing is left to do.
// Null: no calls.
void on_refresh(void (*function)(int idle));

}  // namespace edgekv_documents
