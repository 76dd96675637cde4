/* A CUDA driver without a device: "device memory" is an array of the library, seen at addresses where nothing is mapped. */

#include <string.h>

#define START 0xd00000000000ULL
#define SIZE (1 << 20)

static char memory[SIZE];
static int pushed, pops, copies;

static int known(unsigned long long address) { return address >= START && address < START + SIZE; }

/* Memory from here on belongs to no context, like what is mapped piece by piece. */
#define ADRIFT (START + SIZE / 2)

int cuPointerGetAttribute(void *data, int attribute, unsigned long long address) {
    if (!known(address)) return 1; /* CUDA_ERROR_INVALID_VALUE */
    if (attribute == 2) *(unsigned *)data = 2; /* CU_MEMORYTYPE_DEVICE */
    else if (attribute == 1) *(void **)data = address < ADRIFT ? (void *)0x1234 : (void *)0;
    else if (attribute == 9) *(int *)data = 3;
    else return 1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = device == 3 ? (void *)0x5678 : (void *)0;
    return device == 3 ? 0 : 101;
}

int cuCtxPushCurrent_v2(void *context) {
    if (context != (void *)0x1234 && context != (void *)0x5678) return 201; /* CUDA_ERROR_INVALID_CONTEXT */
    pushed++;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) { pushed--; pops++; return 0; }

int cuMemcpyDtoH_v2(void *host, unsigned long long device, size_t size) {
    if (!pushed) return 201;
    if (!known(device) || device + size > START + SIZE) return 700; /* CUDA_ERROR_ILLEGAL_ADDRESS */
    memcpy(host, memory + (device - START), size);
    copies++;
    return 0;
}

int cuMemcpyHtoD_v2(unsigned long long device, const void *host, size_t size) {
    if (!pushed) return 201;
    if (!known(device) || device + size > START + SIZE) return 700;
    memcpy(memory + (device - START), host, size);
    copies++;
    return 0;
}

int fake_pushed(void) { return pushed; }
