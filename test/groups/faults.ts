import '../faults/crash-states.test.ts'
import '../faults/failing-calls.test.ts'
import '../faults/kill.test.ts'
