import '../e2e/process.test.ts'
import '../e2e/signals.test.ts'
import '../e2e/issuer.test.ts'
