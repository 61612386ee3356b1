/** How far a service has come. `draining` begins with a stop, and no state follows it. */
export interface Lifecycle {
  state: 'starting' | 'serving' | 'draining'
}
