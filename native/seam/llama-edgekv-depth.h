// How deep a recursion over what a client sent may go before its stack overflows, which would end the process.
#pragma once

struct edgekv_parentheses { static constexpr int MOST = 2000; };  // of a grammar, within each other
struct edgekv_rules { static constexpr int MOST = 10000; };  // of a grammar, each named by the one before

// one level; levels are counted for each thread and each kind
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
