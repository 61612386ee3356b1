// Alone: it compares the sizes of the heap.
import '../http/retained.test.ts'
