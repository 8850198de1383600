// Documents that the server shows and others write: texts under a path, or under a name that no request can ask for.
//
// The publisher writes whenever there is something new, from any thread. Threads that answer requests take a copy of the latest text, so no
// request waits for the thread that decodes, nor for Python. `asked_ms` says whether anybody looks at all.
#pragma once

#include <cstdint>
#include <string>

namespace edgekv_documents {

// puts a document in the place of the one before it
void publish(const std::string & path, const std::string & type, const std::string & text);

// takes all of them back, and forgets when they were asked for
void withdraw();

// milliseconds since the document was last asked for; -1: never, or there is no such document
int64_t asked_ms(const std::string & path);

// Sets the function that brings the documents up to date, which the thread that decodes calls between two batches. idle: nothing is left to do.
// Null: none is called.
void on_refresh(void (*function)(int idle));

}  // namespace edgekv_documents
