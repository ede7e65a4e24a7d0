/* Fuzz target: an image of code. It is nonsense for the driver to refuse, or says how large its
 * variables are; it is read as far as it goes, whatever it says of its own parts. */
#include <stdlib.h>
#include <string.h>

#include "../../../shim/src/cuda/image.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *exact = malloc(size ? size : 1); /* so that a sanitizer sees any step beyond the end */
    char *text = calloc(1, size + 1);
    MUST(exact && text);
    memcpy(exact, data, size);
    memcpy(text, data, size);
    uint64_t bytes = ap_ptx_variables(exact, size);
    MUST(ap_ptx_variables(exact, size) == bytes);
    (void)ap_image_variables(text, 0);
    (void)ap_image_variables(text, 80);
    free(exact);
    free(text);
    return 0;
}
