// Documents that the server shows and others write: texts under a path, or under a name that no request can ask for.
//
// Whoever publishes does so whenever there is something new, from any thread. Threads that answer requests take a copy of the latest, so
// that no request waits for whoever computes, nor for Python. `asked_ms` says whether anybody looks at all.
#pragma once

#include <cstdint>
#include <string>

namespace edgekv_documents {

// puts a document in the place of the one before it
void publish(const std::string & path, const std::string & type, const std::string & text);

// takes all of them back, and forgets who asked
void withdraw();

// milliseconds since the document was last asked for; -1: never, or there is no such document
int64_t asked_ms(const std::string & path);

// called on the thread that decodes, between two batches, where what is published should be brought up to date; idle: nothing is left to
// do; null: nobody is called
void on_refresh(void (*function)(int idle));

}  // namespace edgekv_documents
