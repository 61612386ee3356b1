import { reasonOf } from './errors.ts'
import { REPORTED, type Report, type Rule } from './rules.ts'
import { type Variable, variableOf, VARIABLES } from './settings.ts'

/** What Kubernetes sets for a Service named plants, or plants-…: names and values. */
const SERVICE_VARIABLE = new RegExp(
  `^PLANTS(_[A-Z0-9_]+)?_(${[
    'SERVICE_HOST=[0-9a-f.:]+',
    'SERVICE_PORT(_[A-Z0-9_]+)?=[0-9]+',
    'PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.+',
    'PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=[0-9]+|ADDR=[0-9a-f.:]+)',
  ].join('|')})$`,
)

/** The environment variables of the service. An empty value counts as unset. */
export class Environment {
  /** One line each, which begins with the variable. */
  readonly problems: string[] = []
  readonly #env: NodeJS.ProcessEnv
  readonly #given: readonly Variable[]

  constructor(env: NodeJS.ProcessEnv) {
    this.#env = env
    this.#given = VARIABLES.filter(({ name }) => env[name])
    const known = new Set(VARIABLES.map(({ name }) => name))
    for (const [name, text] of Object.entries(env)) {
      if (!name.startsWith('PLANTS_') || !text || known.has(name)) continue
      if (SERVICE_VARIABLE.test(`${name}=${text}`)) continue
      this.problems.push(`${name} is not known: see --help for the variables that are`)
    }
  }

  /** Names the variable of the option; of two variables, the one that is given. */
  readonly report: Report = (option, what) => {
    const given = this.#given.find((variable) => variable.option === option)
    this.problems.push(`${given?.name ?? variableOf(option)} ${what}`)
  }

  /** The given variables of a group of options, such as `etcd`. */
  namesIn(group: string): readonly string[] {
    const inGroup = this.#given.filter(({ option }) => option.startsWith(`${group}.`))
    return inGroup.map(({ name }) => name)
  }

  refuse(group: string, what: string): void {
    this.problems.push(...this.namesIn(group).map((name) => `${name} ${what}`))
  }

  /** What an application would pass to say the same. An empty group is left out. */
  options(rules: Readonly<Record<string, Rule<unknown>>>): Record<string, unknown> {
    const options: Record<string, unknown> = {}
    for (const [option, { members, variables = {}, parse }] of Object.entries(rules)) {
      const group = this.options(members ?? {})
      if (Object.keys(group).length > 0) options[option] = group
      for (const name of Object.keys(variables)) {
        const text = this.#env[name]
        if (text) options[option] = parse ? this.#parse(parse, text, name) : text
      }
    }
    return options
  }

  #parse(parse: NonNullable<Rule<unknown>['parse']>, text: string, name: string): unknown {
    try {
      return parse(text, name)
    } catch (error) {
      this.problems.push(`${name} cannot be read: ${reasonOf(error)}`)
      return REPORTED
    }
  }
}
