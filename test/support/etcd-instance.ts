import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from './ports.ts'
import { MAIN } from './process.ts'
import { AUDIENCE, ISSUER, SECRET } from './tokens.ts'

const agent = new Agent({ keepAlive: true })

export interface Answer {
  readonly status: number
  readonly text: string
  /** True if the list says that more plants follow. */
  readonly isCut: boolean
}

/** The service over etcd as a process. It keeps its port when it is started again. */
export class Instance {
  readonly port: number
  readonly #endpoints: readonly string[]
  readonly #print: (text: string) => void
  #child: ChildProcess | undefined
  /** The last lines that it wrote. */
  output = ''

  private constructor(port: number, endpoints: readonly string[], print: (text: string) => void) {
    this.port = port
    this.#endpoints = endpoints
    this.#print = print
    process.once('exit', () => this.#child?.kill('SIGKILL'))
  }

  /**
   * @param first the index of the endpoint that is used first
   * @param print gets what the process writes
   */
  static async start(
    endpoints: readonly string[],
    first: number,
    print: (text: string) => void = () => {},
  ): Promise<Instance> {
    const at = first % endpoints.length
    const ordered = [...endpoints.slice(at), ...endpoints.slice(0, at)]
    const instance = new Instance(await freePort(), ordered, print)
    await instance.start()
    return instance
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/plants`
  }

  /** Resolves when it answers. @throws Error if it ends instead */
  async start(): Promise<void> {
    const child = spawn(process.execPath, [MAIN, 'serve'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        PATH: process.env['PATH'] ?? '',
        PLANTS_LISTEN: `127.0.0.1:${this.port}`,
        PLANTS_ADMIN_LISTEN: 'off',
        PLANTS_LOG_LEVEL: 'error',
        PLANTS_ETCD_ENDPOINTS: this.#endpoints.join(),
        PLANTS_ISSUER: ISSUER,
        PLANTS_AUDIENCE: AUDIENCE,
        PLANTS_JWT_SECRET: SECRET,
      },
    })
    this.#child = child
    const keep = (text: string): void => {
      this.output = (this.output + text).slice(-4000)
      this.#print(text)
    }
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', keep)
    while ((await fetch(this.url).catch(() => undefined)) === undefined) {
      if (!this.#isRunning) throw new Error(`an instance ended: ${this.output}`)
      await sleep(50)
    }
  }

  get #isRunning(): boolean {
    return this.#child?.exitCode === null && this.#child.signalCode === null
  }

  /** Resolves when the process has ended, by whatever cause, with its exit code. */
  async ended(): Promise<number | null> {
    if (this.#child && this.#isRunning) await once(this.#child, 'exit')
    return this.#child?.exitCode ?? null
  }

  end(signal: NodeJS.Signals): Promise<number | null> {
    this.#child?.kill(signal)
    return this.ended()
  }

  /** A POST of this body, or a GET. @throws if there is no answer */
  call(token: string, query: string, body = ''): Promise<Answer> {
    const method = body === '' ? 'GET' : 'POST'
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
    return new Promise((resolve, reject) => {
      const req = request(`${this.url}${query}`, { agent, method, headers }, (res) => {
        const { statusCode: status = 0, headers } = res
        let text = ''
        res.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
        res.on('error', reject)
        res.on('end', () => resolve({ status, text, isCut: headers['link'] !== undefined }))
      })
      req.on('error', reject).end(body)
    })
  }
}
