import '../e2e/cli.test.ts'
import '../e2e/health.test.ts'
import '../e2e/log.test.ts'
import '../config.test.ts'
