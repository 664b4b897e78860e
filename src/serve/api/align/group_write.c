/* group_write.c: writes the report about a group into the answer. */
#include "serve/api/align/group_impl.h"
#include "serve/api/align/judge.h"

lt_reply_choice *lt_group_kept(const lt_reply *j) {
    return &j->parts[0].choices[j->group->kept.chosen];
}

static void write_candidate(lt_json_out *o, const lt_reply *j, int64_t i) {
    const lt_group *g = j->group;
    const lt_group_candidate *k = &g->candidates[i];
    lt_reply_choice *c = &j->parts[0].choices[i];
    lt_json_out text = {0};
    lt_group_text_of(c, &text);
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", i);
    lt_out_key(o, "text");
    lt_out_str(o, text.data != NULL ? text.data : "", text.n);
    if (k->ended) {
        lt_out_key_real(o, "score", k->score);
    } else {
        lt_out_key_null(o, "score");
    }
    lt_judge_write(o, k->ended ? k->whole.part.steps : NULL, k->whole.part.n_steps);
    lt_out_key_real(o, "probability", k->probability);
    if (g->rule->groups) {
        lt_out_key_str(o, "answer", k->answer >= 0 ? g->answers[k->answer].text : NULL);
    }
    lt_out_key_int(o, "tokens", c->new_tokens);
    lt_out_key_str(o, "finish_reason", k->cut ? "cut" : lt_finish_openai(c));
    if (j->params.group.confidences) {
        lt_out_key_open(o, "confidence", '[');
        for (int64_t t = 0; t < k->confidence.n; t++) {
            lt_out_real(o, (double)k->confidence.values[t]);
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
    lt_out_free(&text);
}

/* Estimated tokens saved by cutting candidates: each would have had as many tokens as the average
 * of those that ended. */
static int64_t saved(const lt_reply *j) {
    const lt_group *g = j->group;
    const lt_reply_choice *choices = j->parts[0].choices;
    int64_t n = 0, tokens = 0, left = 0;
    for (int64_t i = 0; i < g->n; i++) {
        n += g->candidates[i].ended;
        tokens += g->candidates[i].ended ? choices[i].new_tokens : 0;
    }
    for (int64_t i = 0; n > 0 && i < g->n; i++) {
        const int64_t more = tokens / n - choices[i].new_tokens;
        left += !g->candidates[i].ended && more > 0 ? more : 0;
    }
    return left;
}

void lt_group_write(lt_json_out *o, const lt_reply *j) {
    const lt_group *g = j->group;
    const lt_group_candidate *kept = &g->candidates[g->kept.chosen];
    const int64_t tokens = lt_group_kept(j)->new_tokens;
    int64_t n_cut = 0;
    for (int64_t i = 0; i < g->n; i++) {
        n_cut += g->candidates[i].cut;
    }
    lt_out_key_open(o, "alignment", '{');
    lt_out_key_str(o, "method", g->method->name);
    lt_out_key_str(o, "reward",
                   g->rule->groups && !g->scored ? NULL : lt_group_scores[g->score].name);
    lt_out_key_int(o, "n", g->n);
    lt_out_key_int(o, "cut", n_cut);
    lt_out_key_str(o, "stopped_by", g->stopped_by);
    lt_out_key_int(o, "chosen", g->kept.chosen);
    lt_out_key_real(o, "score", kept->score);
    lt_judge_write(o, kept->whole.part.steps, kept->whole.part.n_steps);
    lt_out_key_real(o, "probability", g->kept.probability);
    if (g->method->beam) { /* A beam search draws nothing. */
        lt_out_key_null(o, "kl_bound");
    } else {
        lt_out_key_real(o, "kl_bound", g->kept.kl);
    }
    if (g->rule->groups) {
        lt_out_key_str(o, "answer", kept->answer >= 0 ? g->answers[kept->answer].text : NULL);
    }
    if (g->method->confidence) {
        lt_out_key_int(o, "warmup", g->from > 0 ? j->params.group.warmup : g->until);
        lt_out_key_real(o, "threshold", g->least);
        lt_out_key_real(o, "consensus", g->consensus);
    }
    lt_out_key_open(o, "tokens", '{');
    lt_out_key_int(o, "kept", tokens);
    lt_out_key_int(o, "dropped", lt_reply_new_tokens(j) - tokens);
    lt_out_key_int(o, "saved", saved(j));
    if (g->score == LT_SCORE_REWARD) {
        lt_out_key_int(o, "reward", g->reward_tokens);
    }
    if (g->tournament != NULL) {
        lt_out_key_int(o, "judge", lt_tournament_tokens(g->tournament));
    }
    lt_out_shut(o, '}');
    if (j->params.group.candidates) {
        lt_out_key_open(o, "candidates", '[');
        for (int64_t i = 0; i < g->n; i++) {
            write_candidate(o, j, i);
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}
