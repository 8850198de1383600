// Limits the depth of recursions over a client's input: a stack overflow would end the process.
#pragma once

struct edgekv_parentheses { static constexpr int MOST = 2000; };  // nested parentheses of a grammar
struct edgekv_rules { static constexpr int MOST = 10000; };  // chain of a grammar's rules, each naming the next
struct edgekv_parsers { static constexpr int MOST = 2000; };  // parsers of an answer, each within the one before; a level of JSON takes about eight

// one level of recursion, counted per thread and kind
template <typename Kind>
class edgekv_depth {
public:
    edgekv_depth() { depth()++; }
    ~edgekv_depth() { depth()--; }

    edgekv_depth(const edgekv_depth &) = delete;
    edgekv_depth & operator=(const edgekv_depth &) = delete;

    bool too_deep() const { return depth() > Kind::MOST; }

private:
    static int & depth() {
        static thread_local int levels = 0;
        return levels;
    }
};
