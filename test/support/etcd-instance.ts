import { type Launched, launch, serviceEnvironment } from './launch.ts'
import { freePort } from './ports.ts'

/** The service over etcd as a process. It keeps its port when it is started again. */
export class Instance {
  readonly port: number
  readonly #endpoints: readonly string[]
  readonly #print: (lines: string) => void
  #launched: Launched | undefined

  private constructor(port: number, endpoints: readonly string[], print: (lines: string) => void) {
    this.port = port
    this.#endpoints = endpoints
    this.#print = print
  }

  /**
   * @param first the index of the endpoint that is used first
   * @param print gets what the process writes
   */
  static async start(
    endpoints: readonly string[],
    first: number,
    print: (lines: string) => void = () => {},
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

  /** The last lines that it wrote. */
  get output(): string {
    return this.#launched?.output() ?? ''
  }

  /** Resolves when it listens. @throws Error if it ends instead */
  async start(): Promise<void> {
    const env = serviceEnvironment('', {
      PLANTS_LISTEN: `127.0.0.1:${this.port}`,
      PLANTS_ADMIN_LISTEN: 'off',
      PLANTS_ETCD_ENDPOINTS: this.#endpoints.join(),
    })
    this.#launched = launch(env, { onLines: this.#print })
    await this.#launched.listening
  }

  /** Resolves when the process has ended, by whatever cause, with its exit code. */
  async ended(): Promise<number | null> {
    return (await this.#launched?.exited) ?? null
  }

  async end(signal: NodeJS.Signals): Promise<number | null> {
    return (await this.#launched?.kill(signal)) ?? null
  }
}
