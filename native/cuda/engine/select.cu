// Selection lists the rows that a group's query tokens read. The nodes of nodes.cu enqueue it, under the same rules.
#include "cuda/engine/gpu_engine.h"

namespace edgekv::gpu {

void GpuEngine::find_sight(const EngineView & view, const EngineAttend & args, Stream stream) {
    SightProblem seen = {};
    seen.n_streams          = view.n_streams;
    seen.first_stream       = view.first_stream;
    seen.n_tokens           = view.n_tokens;
    seen.n_cells            = view.n_cells;
    seen.n_cells_stream     = shape.n_cells;
    seen.mask_type          = args.query.mask_type;
    seen.mask               = args.query.mask;
    seen.mask_stride_token  = args.query.mask_stride_token;
    seen.mask_stride_stream = args.query.mask_stride_stream;
    seen.positions          = mirror(mirrors.positions);
    seen.open               = mirror(mirrors.open);
    seen.pins               = reinterpret_cast<const uint32_t *>(mirror(mirrors.pins));
    seen.groups_per_stream  = groups_per_stream();
    seen.k_idxs             = args.query.k_idxs;
    seen.sink_tokens        = args.selection->sink_tokens;
    seen.recent_tokens      = args.selection->recent_tokens;
    seen.page_tokens        = shape.page_tokens;
    seen.sight              = sights_of(0);
    seen.stride             = groups_per_stream();
    launch_sight(seen, stream);
}

std::vector<GpuEngine::Group> GpuEngine::groups_of(const EngineView & view, const EngineAttend & args, int layer) const {
    std::vector<Group> groups;
    for (const TokenGroup & tokens : engine_selected_groups(shape, layer, view, together_bytes)) {
        Group group = { view, args, static_cast<size_t>(tokens.first_stream)*view.n_tokens + tokens.begin };
        group.view.first_stream += tokens.first_stream;
        group.view.n_streams     = tokens.n_streams;
        group.view.n_tokens      = tokens.end - tokens.begin;
        group.args.query.q      += group.first*args.query.q_stride_token;
        group.args.query.mask   += tokens.first_stream*args.query.mask_stride_stream + tokens.begin*args.query.mask_stride_token;
        group.args.query.k_idxs += group.first;
        group.args.out          += group.first*shape.layers[layer].n_head*shape.layers[layer].head_dim*sizeof(float);
        group.args.observe       = args.observe && tokens.observed;
        groups.push_back(group);
    }
    return groups;
}

void GpuEngine::select(int layer, const Group & group, const StoreArgs * store, Stream stream) {
    const EngineView &       view    = group.view;
    const EngineQuery &      args    = group.args.query;
    const edgekv_selection & options = *group.args.selection;
    const EngineLayer &        r       = shape.layers[layer];

    last_layer     = layer;
    n_last_lists = view.n_streams*view.n_tokens*r.n_head_kv;
    SketchScanArgs scan = {};
    scan.sketches       = sketch_array(layer, view.first_stream);
    scan.home           = sketch_home(layer, view.first_stream);
    scan.open           = mirror(mirrors.open) + static_cast<size_t>(view.first_stream)*groups_per_stream();
    scan.n_streams      = view.n_streams;
    scan.n_tokens       = view.n_tokens;
    scan.group          = r.n_head/r.n_head_kv;
    scan.n_groups       = groups_in_view(view);
    scan.q              = { args.q, args.q_stride_token, args.q_stride_head };
    scan.scale          = args.scale;
    scan.softcap        = args.softcap;
    scan.sight          = sights_of(group.first);
    scan.sight_stride   = groups_per_stream();
    scan.out            = { shares.as<uint16_t>(), share_tops.as<float>(), share_sums.as<float>(), list_stride(),
                            static_cast<size_t>(groups_per_stream()) };
    if (store) {
        launch_store_scan(*store, scan, view.first_stream, stream);
    } else {
        launch_sketch_scan(scan, stream);
    }

    SampleBatch sample = {};
    sample.n_streams    = view.n_streams;
    sample.first_stream = view.first_stream;
    sample.n_tokens     = view.n_tokens;
    sample.n_head_kv    = r.n_head_kv;
    sample.sight        = sights_of(group.first);
    sample.sight_stride = groups_per_stream();
    sample.rows         = lists.as<int32_t>();
    sample.stride       = list_stride();
    sample.n_rows       = list_lengths.as<int32_t>();
    sample.totals       = totals.as<SampleTotals>() + static_cast<size_t>(layer)*shape.n_heads;
    sample.group      = scan.group;
    sample.n_groups   = scan.n_groups;
    sample.shares     = scan.out;
    sample.sinks      = args.sinks;
    sample.resolution = options.resolution;
    sample.exact_tokens = options.exact_tokens;
    sample.resolutions = reinterpret_cast<const float *>(mirror(mirrors.resolutions)) + static_cast<size_t>(layer)*shape.n_heads;
    sample.layer      = layer;
    sample.k_idxs     = args.k_idxs;
    sample.positions  = mirror(mirrors.positions);
    sample.n_cells_stream = shape.n_cells;
    sample.weights    = list_weights.as<float>();
    if (keeps_rows(group.args)) {
        KeptRows & kept = sample.kept;
        kept.hot      = hot_rows(layer);
        kept.k        = { { r.k, r.k_stride_cell, r.k_stride_head }, r.k_stride_stream, static_cast<int>(r.k_row_bytes) };
        kept.v        = { { r.v, r.v_stride_cell, r.v_stride_head }, r.v_stride_stream, static_cast<int>(r.v_row_bytes) };
        kept.arena    = page_slots(layer, 0);
        kept.open     = mirror(mirrors.open);
        kept.n_groups = groups_per_stream();
        kept.slots    = list_copies.as<int32_t>();
    }
    sample.words      = sample_words.as<unsigned long long>();
    launch_sample(sample, stream);
}

}  // namespace edgekv::gpu
