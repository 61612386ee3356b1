/*
 * Sends good requests, bad ones and anything else to the built service over raw sockets, and
 * compares every answer with an oracle that reads the same bytes and shares no line with src/. See
 * fuzz/README.md.
 */
import { exitOnSignals } from '../test/support/launch.ts'
import { Realm } from '../test/support/oracle/realm.ts'
import { randomSeed, subSeed } from '../test/support/random.ts'
import { Era } from './fuzz/era.ts'
import { type Finding, loadFinding, saveFinding } from './fuzz/finding.ts'
import { minimize, replay } from './fuzz/replay.ts'
import { Totals } from './fuzz/worker.ts'
import { wholeNumber } from './variables.ts'
import { inDirectory } from './watched.ts'

/** After this long a new directory is used. */
const ERA_SECONDS = 20
const FINDINGS_MAX = 10
/** Each takes a few seconds. */
const MINIMIZED_MAX = 2

const seed = wholeNumber('SEED', randomSeed(), 0)
const seconds = wholeNumber('SECONDS', 60)
const replayed = process.env['REPLAY']

const totals = new Totals()

/** Returns how many things were wrong. */
async function runEra(realm: Realm, number: number, eraSeconds: number): Promise<number> {
  let findings = 0
  const complaints = await inDirectory('fuzz', async (root) => {
    const era = new Era(realm, root, subSeed(seed, number), totals)
    await era.run(eraSeconds)
    totals.eras += 1
    findings = era.findings.length
    for (const [index, [finding, file]] of era.findings.slice(0, FINDINGS_MAX).entries()) {
      const smallest = index < MINIMIZED_MAX ? await minimize(finding) : finding
      saveFinding(file, smallest)
      showFinding(smallest, file)
    }
    return era.complaints.map((complaint) => `COMPLAINT (${realm.name}): ${complaint}`)
  })
  return findings + complaints
}

async function fuzz(): Promise<number> {
  console.log(`${seconds} s, seed ${seed}`)
  const startedAtMs = performance.now()
  const secondsLeft = (): number => seconds - (performance.now() - startedAtMs) / 1000
  const realms = Realm.all().length
  const count = Math.max(realms, Math.ceil(seconds / ERA_SECONDS))
  let wrong = 0
  for (let number = 0; number < count && secondsLeft() > 0 && wrong === 0; number++) {
    const realm = Realm.all()[number % realms]
    if (realm) wrong = await runEra(realm, number, secondsLeft() / (count - number))
  }
  const rate = Math.round((totals.requests * 1000) / (performance.now() - startedAtMs))
  const { requests, connections, mutated, unclear, lost, owners, kills, eras } = totals
  const statuses = [...totals.statuses].sort(([a], [b]) => a - b)
  // Fewer than requests: some follow a last one, and some clients leave before the answer.
  const answers = statuses.reduce((sum, [, count]) => sum + count, 0)
  console.log(`requests ${requests}, of which answered ${answers}, ${rate} a second
connections ${connections}: mutated ${mutated}, unclear ${unclear}, last answers reset ${lost}
answers ${statuses.map(([status, count]) => `${status}: ${count}`).join(', ')}
owners compared ${owners}, kills ${kills}, eras ${eras}
findings ${wrong}, seed ${seed}`)
  return wrong === 0 ? 0 : 1
}

function showFinding({ what, realm, script }: Finding, file: string): void {
  const text = JSON.stringify(script.text)
  const shown = text.length > 6000 ? `${text.slice(0, 6000)} …` : text
  console.error(`FINDING (${realm}): ${what}\n${shown}
${script.ending}, ${script.cuts.length + 1} writes; make fuzz REPLAY=${file}\n`)
}

async function repeat(file: string): Promise<number> {
  const what = await replay(loadFinding(file))
  console.log(what ?? 'nothing is wrong with it any more')
  return what === undefined ? 0 : 1
}

exitOnSignals()
// A process that a failure left running must not keep this one alive.
process.exit(await (replayed ? repeat(replayed) : fuzz()))
