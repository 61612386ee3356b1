import '../faults/real-systems.test.ts'
import '../e2e/drain.test.ts'
import '../e2e/load.test.ts'
import '../e2e/memory.test.ts'
