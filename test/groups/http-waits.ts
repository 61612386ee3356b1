import '../http/stop.test.ts'
import '../http/timeouts.test.ts'
import '../http/aborted.test.ts'
import '../http/adapter.test.ts'
