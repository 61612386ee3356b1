import '../faults/crash-states.test.ts'
// Here, because it counts calls: no other file of this group has services or keys with timers.
import '../reading-path.test.ts'
