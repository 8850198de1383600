#pragma once

// How deep a recursion over what a client sent may go before its stack overflows, which would end the process.
class edgekv_depth {
public:
    explicit edgekv_depth(int & depth) : depth(depth) { depth++; }
    ~edgekv_depth() { depth--; }

    edgekv_depth(const edgekv_depth &) = delete;
    edgekv_depth & operator=(const edgekv_depth &) = delete;

    bool deeper_than(int most) const { return depth > most; }

private:
    int & depth;
};
