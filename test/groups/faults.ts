import '../faults/failing-calls.test.ts'
import '../faults/kill.test.ts'
import '../store/sqljs/recovery.test.ts'
