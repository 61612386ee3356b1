import '../faults/failing-calls.test.ts'
import '../store/sqljs/recovery.test.ts'
