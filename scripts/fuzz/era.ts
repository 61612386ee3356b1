import { join } from 'node:path'
import { Ledger } from '../../test/support/ledger.ts'
import type { World } from '../../test/support/oracle/compare.ts'
import { plantsOf } from '../../test/support/oracle/form.ts'
import type { Owner } from '../../test/support/oracle/owner.ts'
import type { Realm } from '../../test/support/oracle/realm.ts'
import { head } from '../../test/support/wire.ts'
import { check, WatchedService } from '../watched.ts'
import { type Finding, findingFile, saveFinding } from './finding.ts'
import { plainScript, talk } from './talk.ts'
import { type Totals, Worker } from './worker.ts'

const WORKERS = 48
const SHARED_OWNERS = 2
/** Connections that are too slow. The service waits 10 s for them: a short era has no time. */
const STALLED = 4
const STALLED_MIN_SECONDS = 15
/** Lists that one connection asks for. */
const LISTS_AT_ONCE = 8
const LISTING_CONNECTIONS = 4
/** Node's words and the service's. Node has about fifty; texts of clients would be many more. */
const CAUSE = /^(?:Parse Error(?:: [A-Za-z0-9 \/.,`'-]{5,70})?|CONNECT|its? (?:begins|version) .*)$/
const CAUSES_MAX = 60

/**
 * One data directory under one configuration: traffic, SIGKILL in the middle of it, a start,
 * traffic again, a clean stop; and all lists compared after each.
 */
export class Era {
  readonly #world: World
  readonly #root: string
  readonly #totals: Totals
  readonly #workers: readonly Worker[]
  readonly #stalled: readonly Worker[]
  /** Each with the file that holds it. */
  readonly findings: (readonly [finding: Finding, file: string])[] = []
  readonly complaints: string[] = []
  /** Of malformed requests. */
  readonly #causes = new Set<string>()

  constructor(realm: Realm, root: string, seed: number, totals: Totals) {
    const names = Array.from({ length: SHARED_OWNERS }, (_, at) => `all ${at}`)
    const shared = new Map(names.map((name) => [name, realm.tokenOf(name)]))
    this.#world = { realm, owners: new Map(), shared, ledger: new Ledger() }
    this.#root = root
    this.#totals = totals
    const forged = realm.forged('all 0')
    const workers = Array.from(
      { length: WORKERS + STALLED },
      (_, number) => new Worker(this.#world, seed, number, forged),
    )
    this.#workers = workers.slice(0, WORKERS)
    this.#stalled = workers.slice(WORKERS)
  }

  get #failed(): boolean {
    return this.findings.length > 0 || this.complaints.length > 0
  }

  async run(seconds: number): Promise<void> {
    const untilMs = performance.now() + seconds * 900
    await this.#serve('kill', async (service, port) => {
      await this.#traffic(service, port, seconds * 450, 'kill')
    })
    if (this.#failed) return
    await this.#serve('stop', async (service, port) => {
      // First what a killed service has left.
      await this.#verify(port)
      if (this.#failed) return
      const stalled = seconds < STALLED_MIN_SECONDS ? [] : this.#stalled
      await this.#traffic(service, port, Math.max(500, untilMs - performance.now()), stalled)
      if (this.#failed) return
      await this.#verify(port)
      this.#totals.owners += this.#world.owners.size + this.#world.shared.size
    })
  }

  /** One process of the service. What fails, or is to be killed, is. */
  async #serve(
    end: 'kill' | 'stop',
    use: (service: WatchedService, port: number) => Promise<void>,
  ): Promise<void> {
    const environment = this.#world.realm.environment(this.#root)
    const service = new WatchedService(environment, this.#readCauses)
    const data = join(this.#root, 'data')
    try {
      await use(service, await service.ready())
    } finally {
      if (end === 'kill' || this.#failed) await service.kill('SIGKILL')
      else await service.stop(data)
      this.complaints.push(...service.complaints)
    }
    if (end === 'kill' && !this.#failed) this.complaints.push(...(await check(data)))
  }

  /** At level debug: the cause of a malformed request is one of few texts, and not the client's. */
  readonly #readCauses = (lines: string): void => {
    for (const [, cause = ''] of lines.matchAll(/"error":40001,"cause":"((?:[^"\\]|\\.)*)"/g)) {
      this.#causes.add(cause)
      if (!CAUSE.test(cause) || this.#causes.size > CAUSES_MAX)
        this.complaints.push(`the cause of a malformed request: ${cause}`)
    }
  }

  /**
   * Ends with SIGKILL in the middle of it, or once the service has given up on the workers that
   * stall.
   */
  async #traffic(
    service: WatchedService,
    port: number,
    ms: number,
    end: 'kill' | readonly Worker[],
  ): Promise<void> {
    let state: 'running' | 'killed' | 'over' = 'running'
    const isKilled = (): boolean => state === 'killed'
    const stalled = end === 'kill' ? [] : end.map((worker) => worker.stall(port, this.#totals))
    const taken = stalled.map(async (finding) => this.#take(await finding))
    const timer = setTimeout(() => {
      if (end === 'kill') {
        state = 'killed'
        this.#totals.kills += 1
        void service.kill('SIGKILL')
      } else void Promise.all(taken).then(() => (state = 'over'))
    }, ms)
    const work = async (worker: Worker): Promise<void> => {
      while (state === 'running' && !this.#failed && service.complaints.length === 0)
        this.#take(await worker.step(port, this.#totals, isKilled))
    }
    await Promise.all([...taken, ...this.#workers.map(work)])
    clearTimeout(timer)
  }

  #take(finding: Finding | undefined): void {
    if (!finding) return
    const file = findingFile()
    saveFinding(file, finding)
    console.error(`found: ${finding.what.slice(0, 200)}\nmake fuzz REPLAY=${file}`)
    this.findings.push([finding, file])
  }

  /** Nothing is being sent: every list must be exactly what its owner was told. */
  async #verify(port: number): Promise<void> {
    const { owners, shared } = this.#world
    const all: (readonly [name: string, token: string])[] = [...shared]
    for (const { name, token } of owners.values()) all.push([name, token])
    const next = async (): Promise<void> => {
      for (;;) {
        const some = all.splice(0, LISTS_AT_ONCE)
        if (some.length === 0) return
        await this.#compareLists(port, some)
      }
    }
    await Promise.all(Array.from({ length: LISTING_CONNECTIONS }, next))
  }

  async #compareLists(
    port: number,
    owners: readonly (readonly [name: string, token: string])[],
  ): Promise<void> {
    const text = owners.map(([, token]) => head('GET', '/plants', { token })).join('')
    const { answers, flaw } = await talk(port, plainScript(text))
    if (flaw !== undefined || answers.length !== owners.length)
      this.complaints.push(`${answers.length} lists of ${owners.length}: ${flaw ?? ''}`)
    for (const [index, [name, token]] of owners.entries()) {
      const answer = answers[index]
      const mayRead = this.#world.realm.grants.get(token)?.read === true
      if (answer?.status !== (mayRead ? 200 : 403))
        this.complaints.push(`${name}'s list: ${answer?.status}`)
      else if (mayRead) this.#compareList(name, answer.body)
    }
  }

  #compareList(name: string, body: string): void {
    const listed = plantsOf(body)
    const { ledger, owners } = this.#world
    const owner = owners.get(name)
    if (!owner) {
      ledger.showsAll(name, listed, false)
      this.complaints.push(...ledger.problems.splice(0))
    } else if (!owner.explains(listed))
      this.complaints.push(
        `${JSON.stringify(name)} lists ${body.slice(0, 1000)}\nand was told ${told(owner)}`,
      )
  }
}

function told({ plants, open }: Owner): string {
  const known = [...plants].map(([id, plant]) => `${id}: ${JSON.stringify(plant)}`)
  return `${known.join(', ').slice(0, 1000)}, ${open.size} left open`
}
