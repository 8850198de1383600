// Answers that are lists: /v1/embeddings, and /v1/rerank with the documents as its clients send them.
#include "server/dialects/dialect.h"

namespace edgekv_server {
namespace {

class lists : public dialect {
public:
    explicit lists(bool ranks) : m_ranks(ranks) {}

    void take(json & request) override {
        if (!m_ranks) {
            return;
        }
        m_returns = json_value(request, "return_documents", false);
        for (const char * name : { "documents", "texts" }) {
            json taken = json::array();
            for (const auto & one : request.value(name, json()).is_array() ? request.at(name) : json::array()) {
                if (one.is_object() && !one.value("text", json()).is_string()) {
                    decline(std::string("the field '") + name + "' has a document without a 'text'; only texts can be ranked");
                }
                taken.push_back(one.is_object() ? one.at("text") : one);
            }
            if (!taken.empty()) {
                request[name] = taken;
                m_documents   = taken;
            }
        }
    }

    void tell(json & answer) override {
        if (m_returns && answer.contains("results")) {
            for (auto & result : answer.at("results")) {
                result["document"] = {{ "text", m_documents.at(result.at("index").get<size_t>()) }};
            }
        }
    }

    void tell_error(json & body) override {
        const json code = body.at("error").value("code", json());
        if (code == "context_length_exceeded") {
            body["error"]["param"] = m_ranks ? "documents" : "input";
        } else if (code == 501) {
            body["error"]["message"] = m_ranks ? "this server ranks no documents; start it with a model that does: edgekv serve MODEL -- --reranking"
                                               : "this server makes no embeddings; start it for them: edgekv serve MODEL -- --embeddings";
        }
    }

private:
    bool m_ranks;
    bool m_returns = false;
    json m_documents;
};

}  // namespace

std::unique_ptr<dialect> make_lists(bool ranks) { return std::make_unique<lists>(ranks); }

}  // namespace edgekv_server
