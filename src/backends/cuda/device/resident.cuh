// What dispatcher and workers share: the launch's arguments, and mailboxes between them.
#pragma once

#define GPUOS_BLOCK_THREADS 256
#define GPUOS_MAILBOX_DEPTH 32
#define GPUOS_HEARTBEAT_NS 2000000000ull
// How long a kernel that is to leave waits for tasks that run, before it leaves without them. (This and the pauses below
// are others where it is compiled for something slower than a device.)
#ifndef GPUOS_DRAIN_NS
#define GPUOS_DRAIN_NS 500000000ull
#endif

// How often the watcher looks for the host's signs of life, and for what it is to do.
#define GPUOS_LOOK_NS 5000ull
// Looks without work after which a poller pauses between looks, and after which it pauses longer.
#ifndef GPUOS_AWAKE_LOOKS
#define GPUOS_AWAKE_LOOKS 4000
#define GPUOS_DROWSY_LOOKS 50000
#endif
// How long a worker that gives way pauses (`setYieldEvery`).
#ifndef GPUOS_YIELD_NS
#define GPUOS_YIELD_NS 100000ull
#endif
// Letters after which a worker that has not been without work writes its counters where the host sees them.
#define GPUOS_SAVE_LETTERS 1024

// Parameter blocks up to this size are brought into device memory when many blocks are going to read them. The bit says
// in a letter that its block's address is one there.
#define GPUOS_NEAR_BYTES 1024
#define GPUOS_NEAR (1ull << 63)

// A block's dynamic shared memory: a parameter block for the worker and one for chain, then the operators' scratch.
// The dispatcher uses the same bytes for its own purposes.
#define GPUOS_PARAMS_BYTES 4096
#define GPUOS_SHARED_BYTES 32768
#define GPUOS_DYNAMIC_BYTES (2 * GPUOS_PARAMS_BYTES + GPUOS_SHARED_BYTES)

// Warps of the dispatcher's block that admit; the last one watches.
#define GPUOS_MAX_SHARDS 6
#define GPUOS_MAX_QUEUES 16

// An operator: all threads of a block call it for one tile; it fails if any of them returns a failure. `shared`
// is the block's scratch, `data` what belongs to the table's entry.
typedef uint32_t (*OperatorFunction)(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared, const uint32_t *data);

// A function that slots may name. The address may change while tasks run, to one that computes the same.
struct __align__(16) FunctionEntry {
  uint64_t address;
  uint64_t data;
};

// A slot of the operator table; only the dispatcher writes, so that changes are in order with tasks. {fn, version} is one word.
// The dispatcher has the functions' numbers in its shared memory too.
struct __align__(8) SlotEntry {
  uint32_t fn; // 0: empty
  uint32_t version;
};

// How far a task is that goes out in several letters. The dispatcher writes it before the first of them.
struct __align__(16) Progress {
  uint32_t done;   // letters that are through; of pulled tiles, tiles
  uint32_t worst;  // status of the first tile that failed
  unsigned long long pulled; // {sequence, next tile} where tiles are pulled
};

// What stands in the place of a function's data where its tiles differ in how long they take: then they are not dealt out,
// but whoever is free pulls the next one.
#define GPUOS_PULLED 1

// How often the table has changed, so that a worker knows whether what it knows of an operator still holds: by the
// dispatcher, in the order of its tasks; and by the host, which writes entries of the table of functions beside it. With
// them stands whether the kernel leaves, so that one look tells it all.
struct __align__(16) Changes {
  uint32_t dispatched;
  uint32_t entered;
  uint32_t leave; // not 0: every block leaves
  uint32_t reserved;
};

// A letter sends a worker to a task, and brings all of it: its descriptor, which share of the tiles is the worker's, and
// what the table said when the task was admitted. Nothing has to be looked up but the function, which workers remember.
#define GPUOS_LETTER_WORDS 36
#define GPUOS_LETTER_ENVELOPE 32
struct Envelope {
  uint8_t share;   // tiles share, share + letters, ...
  uint8_t queue;
  uint8_t letters; // workers that share its tiles
  uint8_t status;  // not OK: it ends with this instead of running
};
struct Letter {
  uint32_t descriptor[GPUOS_LETTER_ENVELOPE];
  Envelope envelope;
  uint32_t fn;          // the function that the operator's slot held
  uint32_t changes;     // `dispatched` as it was then
  uint32_t yield_every; // tiles after which its workers give way once; 0: never
};
static_assert(sizeof(Letter) / 4 == GPUOS_LETTER_WORDS && sizeof(gpuos_descriptor) / 4 == GPUOS_LETTER_ENVELOPE, "Letter");
static_assert(GPUOS_MAX_TILES <= 255 && GPUOS_MAX_QUEUES <= 255, "an envelope's numbers");

// One producer (a warp of the dispatcher), one consumer. Letter i is in place i % DEPTH, in pieces of three words that come
// in one access each. The fourth says of which letter a piece is: its number and one. So all of a letter is there when
// all of its pieces say so, and none of it has to be ordered before the rest.
#define GPUOS_LETTER_PIECES 12
static_assert(GPUOS_LETTER_PIECES * 3 == GPUOS_LETTER_WORDS, "pieces of three words");
struct __align__(128) Mailbox {
  uint4 places[GPUOS_MAILBOX_DEPTH][GPUOS_LETTER_PIECES];
  uint32_t taken; // letters that are through
  uint32_t sent;  // as of when the kernel left: the letters in between are the next one's
};

struct ResidentArguments {
  // The segment that host and device share, as the device sees it. Offsets in it are those of the abi.
  char *host;
  // Device memory from here on.
  Mailbox *mailboxes;    // [shards][workers]
  Progress *progress;    // of tasks that several workers share: [queues][slots]
  uint64_t *completions; // {sequence, status} of each slot of each queue: [queues][slots]
  uint32_t *marks;       // first sequence of each queue that is not complete, as far as the device knows
  uint32_t *heads;       // first sequence of each queue that is not admitted
  SlotEntry *table;
  FunctionEntry *functions;
  uint32_t *killed; // by slot
  // Parameter blocks of tasks of several tiles, near the workers: [queues][slots] of GPUOS_NEAR_BYTES; null: there is no room.
  char *params;
  uint32_t *leave;  // that of `changes`
  uint64_t *steps;  // what each worker is at, for who looks for tasks that do not end: [workers]
  Changes *changes;
  uint32_t workers;
  uint32_t queues;
  uint32_t slots;
  uint32_t shards;
  // Where things lie in the segment: here, since each look into the segment itself goes over PCIe.
  uint32_t records;        // the queue records
  uint32_t rings;          // the first queue's ring; its completions follow it
  uint32_t queue_stride;   // from one queue's ring to the next one's
  uint32_t control_slot;   // the operator that changes the table
  uint32_t worker_records; // the workers' records, after the host's
  uint32_t budget_ms;      // how long a worker may be at one task
};

// The host allocates these, and fills in the last one (resident.ts; a test compares the numbers).
static_assert(sizeof(Mailbox) == 6272, "Mailbox");
static_assert(sizeof(Progress) == 16, "Progress");
static_assert(sizeof(Changes) == 16, "Changes");
static_assert(sizeof(FunctionEntry) == 16, "FunctionEntry");
static_assert(sizeof(SlotEntry) == 8, "SlotEntry");
static_assert(sizeof(ResidentArguments) == 144, "ResidentArguments");

// Modulo 2^32: whether a comes before b.
__device__ __forceinline__ bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

__device__ __forceinline__ const gpuos_control *control_of(const ResidentArguments &a) {
  return reinterpret_cast<const gpuos_control *>(a.host + GPUOS_CONTROL_ADDRESS);
}

__device__ __forceinline__ gpuos_queue_record *queue_of(const ResidentArguments &a, uint32_t queue) {
  return reinterpret_cast<gpuos_queue_record *>(a.host + a.records) + queue;
}

__device__ __forceinline__ gpuos_worker_record *worker_of(const ResidentArguments &a, uint32_t worker) {
  return reinterpret_cast<gpuos_worker_record *>(a.host + a.worker_records) + worker;
}

__device__ __forceinline__ const char *ring_of(const ResidentArguments &a, uint32_t queue) {
  return a.host + a.rings + static_cast<size_t>(queue) * a.queue_stride;
}

__device__ __forceinline__ uint64_t *completions_of(const ResidentArguments &a, uint32_t queue) {
  return reinterpret_cast<uint64_t *>(a.host + a.rings + static_cast<size_t>(queue) * a.queue_stride + static_cast<size_t>(a.slots) * 128);
}

// The end of a task, for the host and for the tasks that wait for it. What it wrote comes first.
__device__ __forceinline__ void publish_end(const ResidentArguments &a, uint32_t queue, uint32_t sequence, uint32_t status) {
  const uint64_t word = (static_cast<uint64_t>(sequence) << 32) | status;
  const uint32_t slot = sequence & (a.slots - 1);
  if (status != GPUOS_STATUS_OK) atomicAdd_system(&queue_of(a, queue)->failures, 1u);
  fence_system();
  store_host(completions_of(a, queue) + slot, word);
  store_relaxed(&a.completions[queue * a.slots + slot], word);
}

// The status of a tile, from what each thread returned: of several failures any one. All threads, with the same `word`
// of shared memory. (__syncthreads_or() itself tells no more than whether there was one.)
__device__ __forceinline__ uint32_t agree(uint32_t status, volatile uint32_t *word) {
  if (__syncthreads_or(status != GPUOS_STATUS_OK) == 0) return GPUOS_STATUS_OK;
  if (status != GPUOS_STATUS_OK) *word = status;
  __syncthreads();
  const uint32_t agreed = *word;
  __syncthreads();
  return agreed;
}

// Copies a parameter block, `lines` of 64 bytes, into shared memory; from the segment one that does not fit (or of
// unknown length, 0 lines) is read where it is. All threads take part and are in step after it.
__device__ __forceinline__ const uint64_t *bring_params(const char *from, uint32_t lines, char *to) {
  if (lines == 0 || lines * 64 > GPUOS_PARAMS_BYTES) return reinterpret_cast<const uint64_t *>(from);
  if (threadIdx.x < lines * 4) reinterpret_cast<uint4 *>(to)[threadIdx.x] = load_host(reinterpret_cast<const uint4 *>(from) + threadIdx.x);
  __syncthreads();
  return reinterpret_cast<const uint64_t *>(to);
}
