// Attention over pooled keys and values.
#include "decode_attention.h"
#include "prompt_attention.h"
