/* A matmul primitive of oneDNN 3 behind two functions, for bench/paired_cross_runtime.py.
 *
 * Weights are reordered once to the layout the library prefers: its best, and what a deployed model does. */

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_memory_t a, b, c, packed;
} shim;

#define TRY(call) do { if ((call) != dnnl_success) return NULL; } while (0)

/* C [m, n] = A [m, k] B [k, n], all row-major: 0 f32, 1 bf16, C of the same type; 2 s8 with C in s32. NULL where oneDNN
 * refuses. */
void *shim_new(long m, long n, long k, int kind, int pack, void *weights) {
    shim *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    dnnl_data_type_t type = kind == 0 ? dnnl_f32 : kind == 1 ? dnnl_bf16 : dnnl_s8;
    dnnl_data_type_t result = kind == 2 ? dnnl_s32 : type;
    dnnl_dims_t ad = {m, k}, bd = {k, n}, cd = {m, n};
    dnnl_memory_desc_t am, bm, any, cm;
    TRY(dnnl_engine_create(&s->engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags));
    TRY(dnnl_memory_desc_create_with_tag(&am, 2, ad, type, dnnl_ab));
    TRY(dnnl_memory_desc_create_with_tag(&bm, 2, bd, type, dnnl_ab));
    TRY(dnnl_memory_desc_create_with_tag(&any, 2, bd, type, pack ? dnnl_format_tag_any : dnnl_ab));
    TRY(dnnl_memory_desc_create_with_tag(&cm, 2, cd, result, dnnl_ab));
    dnnl_primitive_desc_t pd;
    TRY(dnnl_matmul_primitive_desc_create(&pd, s->engine, am, any, NULL, cm, NULL));
    TRY(dnnl_primitive_create(&s->matmul, pd));
    const_dnnl_memory_desc_t wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    TRY(dnnl_memory_create(&s->a, am, s->engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&s->b, bm, s->engine, weights));
    TRY(dnnl_memory_create(&s->c, cm, s->engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&s->packed, wanted, s->engine, DNNL_MEMORY_ALLOCATE));
    dnnl_primitive_desc_t rd;
    dnnl_primitive_t reorder;
    TRY(dnnl_reorder_primitive_desc_create(&rd, bm, s->engine, wanted, s->engine, NULL));
    TRY(dnnl_primitive_create(&reorder, rd));
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, s->b}, {DNNL_ARG_TO, s->packed}};
    TRY(dnnl_primitive_execute(reorder, s->stream, 2, args));
    TRY(dnnl_stream_wait(s->stream));
    return s;
}

void shim_free(void *handle) {
    shim *s = handle;
    dnnl_memory_t memories[] = {s->a, s->b, s->c, s->packed};
    dnnl_primitive_destroy(s->matmul);
    for (int i = 0; i < 4; i++) dnnl_memory_destroy(memories[i]);
    dnnl_stream_destroy(s->stream);
    dnnl_engine_destroy(s->engine);
    free(s);
}

/* 0 when it ran. */
int shim_run(void *handle, void *a, void *c) {
    shim *s = handle;
    if (dnnl_memory_set_data_handle(s->a, a) != dnnl_success) return 1;
    if (dnnl_memory_set_data_handle(s->c, c) != dnnl_success) return 2;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, s->a}, {DNNL_ARG_WEIGHTS, s->packed}, {DNNL_ARG_DST, s->c}};
    if (dnnl_primitive_execute(s->matmul, s->stream, 3, args) != dnnl_success) return 3;
    return dnnl_stream_wait(s->stream) == dnnl_success ? 0 : 4;
}
