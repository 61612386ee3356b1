/*
 * Measures what the built service costs in one scenario: `make measure SCENARIO=stalls`. Without a
 * scenario this prints the list. MAIN=path measures another build of the service.
 */
import { exitOnSignals } from '../test/support/launch.ts'

interface Scenario {
  readonly what: string
  readonly load: () => Promise<{ measure(): Promise<void> }>
}

const SCENARIOS: Readonly<Record<string, Scenario>> = {
  stalls: {
    what: 'how long a probe and another owner wait while one owner attacks; SECONDS=n each',
    load: () => import('./measure/stalls.ts'),
  },
  strangers: {
    what: 'how long owners wait beside RATE=n bad ES512 signatures a second; SECONDS=n, ROUNDS=n',
    load: () => import('./measure/strangers.ts'),
  },
  memory: {
    what: 'memory of clients that make the service hold what they can, each way by itself',
    load: () => import('./measure/memory.ts'),
  },
  readers: {
    what: 'whether one owner gets all of 450 long lists while another opens 250 and reads nothing',
    load: () => import('./measure/readers.ts'),
  },
  limits: {
    what: 'the embedded store at its limits: stalls, memory and disk, and the longest start',
    load: () => import('./measure/limits.ts'),
  },
  exhaust: {
    what: 'memory after TOKENS=n different tokens, beside 100,000 owners and 1,000,000 plants',
    load: () => import('./measure/exhaust.ts'),
  },
  'list-memory': {
    what: 'how far memory grows while one list of 100,000 plants is sent',
    load: () => import('./measure/list-memory.ts'),
  },
  json: {
    what: "time to read a body by shape and length; SHAPES='a,b' measures some",
    load: () => import('./measure/json.ts'),
  },
}

const name = process.argv[2]
const scenario = SCENARIOS[name ?? '']
if (scenario) {
  exitOnSignals()
  await (await scenario.load()).measure()
  process.exit()
}
console.log('make measure SCENARIO=')
for (const [key, { what }] of Object.entries(SCENARIOS)) console.log(`  ${key.padEnd(12)} ${what}`)
if (name !== undefined) process.exitCode = 2
