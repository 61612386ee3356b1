/*
 * Speaks to the built service over raw sockets, in good requests, bad ones, and what is neither, and holds every answer
 * against a model of its own, which reads what was sent byte by byte and shares no line with src/. What is acknowledged
 * must be listed, for its owner alone, after SIGKILL too; what is refused must not.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Era } from './fuzz/era.ts'
import { Realm } from './fuzz/realm.ts'
import { minimize, replay } from './fuzz/replay.ts'
import type { Finding, Totals } from './fuzz/worker.ts'

/** A directory is left for a fresh one after so long. */
const ERA_SECONDS = 20
const FINDINGS_MAX = 10
/** Each costs a few seconds. */
const MINIMIZED_MAX = 2

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '60' }, seed: { type: 'string' }, replay: { type: 'string' } } })
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31))
const seconds = Number(values.seconds)

async function fuzz(): Promise<number> {
  const totals: Totals = { requests: 0, connections: 0, statuses: new Map(), mutated: 0, unclear: 0 }
  const findings: Finding[] = []
  const complaints: string[] = []
  let owners = 0
  let kills = 0
  console.log(`${seconds} s, seed ${seed}`)
  const startedAt = performance.now()
  const left = (): number => seconds - (performance.now() - startedAt) / 1000
  const eras = Math.max(Realm.all().length, Math.ceil(seconds / ERA_SECONDS))
  for (let number = 0; number < eras && left() > 0 && findings.length < FINDINGS_MAX && complaints.length === 0; number++) {
    const realms = Realm.all()
    const realm = realms[number % realms.length] ?? realms[0]
    const root = await mkdtemp(join(tmpdir(), 'plant-store-fuzz-'))
    const era = new Era(realm, root, seed + number, totals)
    await era.run(left() / (eras - number))
    findings.push(...era.findings)
    complaints.push(...era.complaints)
    owners += era.owners
    kills += era.kills
    if (era.complaints.length === 0) await rm(root, { recursive: true })
    else console.error(`the directory is left: ${root}`)
  }
  const took = (performance.now() - startedAt) / 1000
  for (const [index, finding] of findings.slice(0, FINDINGS_MAX).entries()) await tell(index < MINIMIZED_MAX ? await minimize(finding) : finding)
  for (const complaint of complaints.slice(0, 20)) console.error(complaint)
  const statuses = [...totals.statuses].sort(([a], [b]) => a - b).map(([status, count]) => `${status}: ${count}`)
  console.log(`requests ${totals.requests}, ${Math.round(totals.requests / took)} a second; connections ${totals.connections}, of which mutated ${totals.mutated}, unclear ${totals.unclear}
answers ${statuses.join(', ')}
owners compared ${owners}, kills ${kills}
findings ${findings.length + complaints.length}, seed ${seed}`)
  return findings.length + complaints.length === 0 ? 0 : 1
}

/** Prints a finding, and leaves it in a file by which it can be repeated. */
async function tell(finding: Finding): Promise<void> {
  const { what, realm, script } = finding
  const directory = await mkdtemp(join(tmpdir(), 'plant-store-finding-'))
  const file = join(directory, 'finding.json')
  await writeFile(file, JSON.stringify(finding))
  const text = JSON.stringify(script.text)
  console.error(`FINDING (${realm}): ${what}\n${text.slice(0, 6000)}${text.length > 6000 ? ' …' : ''}\n${script.ending}, ${script.cuts.length + 1} writes; make fuzz REPLAY=${file}\n`)
}

async function repeat(file: string): Promise<number> {
  // Written by tell().
  const finding = JSON.parse(await readFile(file, 'utf8')) as Finding
  const what = await replay(finding)
  console.log(what ?? 'nothing is wrong with it any more')
  return what === undefined ? 0 : 1
}

if (!Number.isFinite(seconds) || seconds <= 0 || !Number.isSafeInteger(seed)) {
  console.error('--seconds must be a number, more than 0, and --seed a whole number')
  process.exitCode = 2
} else {
  process.exitCode = await (values.replay === undefined ? fuzz() : repeat(values.replay))
}
// A service that was left behind by a failure must not keep this one alive.
await sleep(0)
