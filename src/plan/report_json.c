/* report_json.c: the plan as JSON. Each number is in the unit of its name. */
#include <math.h>

#include "plan/report.h"

static json_t *layout_json(const lt_plan_layout *l) {
    static const char *const schedules[] = {
#define SCHEDULE_NAME(code, name) name,
        LT_PLAN_SCHEDULE_MAP(SCHEDULE_NAME)};
    static const char *const precisions[] = {
#define PRECISION_NAME(code, name) name,
        LT_PLAN_PRECISION_MAP(PRECISION_NAME)};
    static const char *const recompute[] = {"none", "selective", "full"};
    return json_pack("{s:i,s:b,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:s,s:s,s:s,s:s}", "tp", l->tp, "sp",
                     l->sp && l->tp > 1, "pp", l->pp, "vpp", l->vpp, "cp", l->cp, "ep", l->ep, "dp",
                     l->dp, "zero", l->zero, "micro_batch", (json_int_t)l->micro, "accumulation",
                     (json_int_t)l->accum, "schedule", l->pp > 1 ? schedules[l->schedule] : "none",
                     "recompute", recompute[l->recompute], "precision", precisions[l->precision],
                     "order", l->dp_outer ? "tp-cp-pp-dp" : "tp-cp-dp-pp");
}

static json_t *time_json(const lt_plan_time *t) {
    json_t *o = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "step_s", t->step_s, "tokens_s", t->tokens_s,
                          "tokens_s_gpu", t->tokens_s_gpu, "mfu", t->mfu, "hfu", t->hfu,
                          "comm_total_s", t->comm_total_s);
#define ADD_PART(field, key, text) json_object_set_new(o, key "_s", json_real(t->field));
    LT_PLAN_PART_MAP(ADD_PART)
#undef ADD_PART
    return o;
}

static json_t *memory_json(const lt_plan_memory *m) {
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:i}", "weights_bytes", m->weights,
                     "gradients_bytes", m->gradients, "optimizer_bytes", m->optimiser,
                     "activations_bytes", m->activations, "logits_bytes", m->logits,
                     "buffers_bytes", m->buffers, "margin_bytes", m->margin, "total_bytes",
                     m->total, "stage", m->stage);
}

json_t *lt_plan_report_json(const lt_plan_report *r, int n_layouts) {
    const lt_plan_goodput *g = &r->goodput;
    json_t *layouts = json_array(), *warnings = json_array(), *what_ifs = json_array(), *root;
    for (int i = 0; i < n_layouts && (size_t)i < r->found.n_best; i++) {
        const lt_plan_choice *x = &r->found.best[i];
        json_array_append_new(layouts,
                              json_pack("{s:o,s:o,s:o}", "layout", layout_json(&x->layout), "time",
                                        time_json(&x->time), "memory", memory_json(&x->memory)));
    }
    for (int i = 0; i < r->n_warnings; i++) {
        json_array_append_new(warnings, json_string(r->warning[i]));
    }
    for (int i = 0; i < r->n_what_ifs; i++) {
        json_array_append_new(what_ifs,
                              json_pack("{s:s,s:f,s:f}", "change", r->what_if[i].change, "step_s",
                                        r->what_if[i].step_s, "speedup",
                                        r->found.best[0].time.step_s / r->what_if[i].step_s));
    }
    root = json_pack("{s:s,s:s,s:s,s:s,s:I,s:b,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "model",
                     r->model.name, "cluster", r->cluster.name, "gpu", r->cluster.gpu.name, "stack",
                     r->cluster.stack.name, "gpus", (json_int_t)r->query.gpus, "fits", 1, "tokens",
                     r->tokens, "days", r->days, "days_without_failures", r->days_pure, "gpu_hours",
                     r->gpu_hours, "price", r->money, "energy_mwh", r->mwh, "power_swing_mw",
                     r->swing_mw);
    if (root == NULL) {
        return NULL;
    }
    json_object_set_new(root, "goodput",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I}", "mtbf_s",
                                  g->mtbf_s, "interval_s", g->interval_s, "save_s", g->save_s,
                                  "block_s", g->block_s, "restart_s", g->restart_s, "ettr", g->ettr,
                                  "goodput", g->goodput, "checkpoint_loss", g->checkpoint_loss,
                                  "rework_loss", g->rework_loss, "restart_loss", g->restart_loss,
                                  "spare_nodes", (json_int_t)g->spares));
    json_object_set_new(root, "search",
                        json_pack("{s:I,s:I,s:f}", "tried", (json_int_t)r->found.n_tried, "fit",
                                  (json_int_t)r->found.n_fit, "seconds", r->found.seconds));
    json_object_set_new(root, "layouts", layouts);
    json_object_set_new(root, "what_if", what_ifs);
    json_object_set_new(root, "warnings", warnings);
    return root;
}
