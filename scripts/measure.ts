/*
 * Measures the built service under what hostile clients do: `make measure SCENARIO=stalls`,
 * strangers or memory. MAIN=path measures another build of the service, such as an older one.
 */
import { memory } from './measure/memory.ts'
import { stalls } from './measure/stalls.ts'
import { strangers } from './measure/strangers.ts'

const SCENARIOS: Readonly<Record<string, () => Promise<void>>> = { stalls, strangers, memory }

const name = process.argv[2] ?? ''
const scenario = Object.hasOwn(SCENARIOS, name) ? SCENARIOS[name] : undefined
if (scenario) await scenario()
else {
  process.stderr.write(`measure: SCENARIO is one of ${Object.keys(SCENARIOS).join(', ')}\n`)
  process.exitCode = 2
}
